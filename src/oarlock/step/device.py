"""Which device a run uses."""

import torch


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """The device of that name; `auto` is a GPU if there is one, and `cuda` the one of this process on its machine.

    Raises:
        ValueError: the device is not known or not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and local_rank > 0:
        name = f"cuda:{local_rank}"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device {name!r} is not known; use cpu, cuda, cuda:N or auto") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported; use cpu, cuda, cuda:N or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {name!r} is not there; torch sees {torch.cuda.device_count()} GPUs here")
    return device
