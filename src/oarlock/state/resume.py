"""Taking a run folder for a run: a new one, or the one that it holds already."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor
from torch.optim import Optimizer

from oarlock.config import RunConfig, differences, read_run_config, write_run_config
from oarlock.config.folders import LOGS
from oarlock.parallel import Layout
from oarlock.state.checkpoint import load_newest, newest_digest
from oarlock.state.digest import IRRELEVANT, trajectory_digest
from oarlock.state.lock import LOCK
from oarlock.state.snapshot import cut, restore

CONFIG = "config.yaml"
PARTIAL = "config.yaml.partial"
TOKENIZER = "tokenizer"


def claim_run(run: Path, config: RunConfig, data_fingerprint: str, tokenizer: Path) -> str:
    """Write the resolved configuration into the run folder `run`, and return its digest for checkpoints.

    The tokenizer's folder is copied along, so that the run can be exported when the data set is gone.

    Raises ValueError where the folder holds something else, or a run with checkpoints whose configuration or data set
    differs in what the weights depend on; the message names the fields, and the folder is left as it was.
    """
    digest = trajectory_digest(config, data_fingerprint)
    path = run / CONFIG
    others = [entry.name for entry in run.iterdir() if entry.name not in (LOCK, PARTIAL, LOGS)]
    if others and not path.exists():
        raise ValueError(
            f"{run} holds no run but {others[0]!r} and maybe more; choose an empty or new folder for --out"
        )
    saved_digest = newest_digest(run)
    if saved_digest is not None:
        _refuse_other_configuration(path, config)
        if saved_digest != digest:
            raise ValueError(
                f"{run} holds a run that was trained on other data than {config.data} holds now; give the same data "
                "set, or choose another --out"
            )
    write_run_config(run / PARTIAL, config)
    (run / PARTIAL).replace(path)
    (run / TOKENIZER).mkdir(exist_ok=True)
    for file in tokenizer.iterdir():
        shutil.copy(file, run / TOKENIZER)
    return digest


def resume(
    run: Path,
    named_parameters: Iterable[tuple[str, Tensor]],
    optimizers: Iterable[Optimizer],
    layout: Layout | None = None,
) -> dict[str, float]:
    """Restore the newest complete checkpoint of the run folder `run` and return its totals; nothing where it has none.

    It may have been saved under any plan. With a layout, `named_parameters` are its masters.

    Raises ValueError where the checkpoint does not fit the model.
    """
    snapshot = load_newest(run)
    if snapshot is None:
        return {}
    restore(cut(snapshot, layout) if layout else snapshot, named_parameters, optimizers)
    return snapshot.progress


def _refuse_other_configuration(path: Path, config: RunConfig) -> None:
    changed = differences(read_run_config(path), config)
    clauses = [f"{name} was {old}, now {new}" for name, (old, new) in changed.items() if not _is_irrelevant(name)]
    if clauses:
        raise ValueError(
            f"{path.parent} holds a run with another configuration: {'; '.join(clauses)}. To go on with that run: "
            f"`oarlock train {path}`; for a new one choose another --out"
        )


def _is_irrelevant(name: str) -> bool:
    section, _, field = name.partition(".")
    fields = IRRELEVANT.get(section, ())
    return fields is True or field in fields
