"""Taking a run folder for a run: a new one, or the one that it holds already."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor
from torch.optim import Optimizer

from oarlock.config import RunConfig, differences, read_run_config, write_run_config
from oarlock.state.checkpoint import load_newest, newest_checkpoint
from oarlock.state.digest import IRRELEVANT, trajectory_digest
from oarlock.state.lock import LOCK
from oarlock.state.snapshot import restore

CONFIG = "config.yaml"
TOKENIZER = "tokenizer"


def claim_run(run: Path, config: RunConfig, data_fingerprint: str, tokenizer: Path) -> str:
    """Write the resolved configuration into the run folder `run`, and return its digest for checkpoints.

    The tokenizer's folder is copied along, so that the run can be exported when the data set is gone.

    Raises ValueError where the folder holds something else, or a run with checkpoints whose configuration differs in
    what the weights depend on; the message names the fields.
    """
    path = run / CONFIG
    others = [entry.name for entry in run.iterdir() if entry.name != LOCK]
    if others and not path.exists():
        raise ValueError(
            f"{run} holds no run but {others[0]!r} and maybe more; choose an empty or new folder for --out"
        )
    if newest_checkpoint(run) is not None:
        old = read_run_config(path)
        exclude = {**IRRELEVANT}
        before = old.model_copy(
            update={name: getattr(config, name) for name, whole in exclude.items() if whole is True}
        )
        changed = differences(before, config)
        ignored = {f"{name}.{key}" for name, keys in exclude.items() if keys is not True for key in keys}
        clauses = [f"{name} was {a}, now {b}" for name, (a, b) in changed.items() if name not in ignored]
        if clauses:
            raise ValueError(
                f"{run} holds a run with another configuration: {'; '.join(clauses)}. To go on with that run: "
                f"`oarlock train {path}`; for a new one choose another --out"
            )
    partial = path.with_suffix(".partial")
    write_run_config(partial, config)
    partial.replace(path)
    shutil.copytree(tokenizer, run / TOKENIZER, dirs_exist_ok=True)
    return trajectory_digest(config, data_fingerprint)


def resume(
    run: Path, named_parameters: Iterable[tuple[str, Tensor]], optimizers: Iterable[Optimizer], digest: str
) -> dict[str, float]:
    """Restore the newest complete checkpoint of the run folder `run` and return its totals; nothing where it has none.

    Raises ValueError where the checkpoint belongs to another data set, or does not fit the model.
    """
    snapshot = load_newest(run)
    if snapshot is None:
        return {}
    if snapshot.config_digest != digest:
        raise ValueError(
            f"the checkpoint of step {snapshot.step} in {run} was trained on other data than the data set given now; "
            "give the same data set, or choose another --out"
        )
    restore(snapshot, named_parameters, optimizers)
    return snapshot.progress
