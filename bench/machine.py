"""What a figure was measured on."""

import platform
from pathlib import Path
from typing import Any

import torch


def machine() -> dict[str, Any]:
    """Processor, threads and the version of torch."""
    return {"processor": processor(), "threads": torch.get_num_threads(), "torch": torch.__version__}


def processor() -> str:
    """Name of the CPU, and whether it multiplies bf16 matrices by itself."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    name = names[0] if names else platform.processor()
    return f"{name} with AMX" if "amx_bf16" in text else name
