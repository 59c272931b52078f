"""A trained model from wherever it lies: a run folder or a Hugging Face folder."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from oarlock.config import RunConfig, read_run_config
from oarlock.config.folders import fetch
from oarlock.model import MaskedLM, build_model, load_huggingface
from oarlock.state.checkpoint import checkpoint_path, complete_checkpoints, load_newest, read_checkpoint, step_of
from oarlock.state.resume import CONFIG, TOKENIZER
from oarlock.state.snapshot import restore


class Trained(NamedTuple):
    """A model in fp32 on the CPU, in evaluation mode, and what goes with it."""

    model: MaskedLM
    tokenizer: Path
    """Folder of its tokenizer."""
    run: RunConfig | None
    """Configuration of the run that trained it; None for a Hugging Face folder."""
    step: int | None
    """Steps it was trained for in that run."""


def load_trained(source: str, step: int | None = None) -> Trained:
    """The model of a run folder (its newest complete checkpoint, or that of `step`) or of a Hugging Face folder.

    Raises:
        ValueError: there is neither, or it cannot be read.
    """
    folder = fetch(source)
    if not (folder / CONFIG).exists():
        if not (folder / "config.json").exists():
            raise ValueError(
                f"{source} is neither a run folder (it has no {CONFIG}) nor a Hugging Face folder (no config.json)"
            )
        if step is not None:
            raise ValueError(f"{source} is a Hugging Face folder, which has no steps; leave --step away")
        return Trained(load_huggingface(folder)[0].eval(), folder, None, None)
    config = read_run_config(folder / CONFIG)
    saved = [step_of(path) for path in complete_checkpoints(folder)]
    if not saved:
        raise ValueError(f"{source} has no complete checkpoint yet; train it a little longer")
    if step is not None and step not in saved:
        raise ValueError(f"{source} has no checkpoint of step {step}; there are those of {', '.join(map(str, saved))}")
    snapshot = load_newest(folder) if step is None else read_checkpoint(checkpoint_path(folder, step))
    assert snapshot is not None
    model = build_model(config.model).eval()
    restore(replace(snapshot, optimizer={}), model.named_parameters(), ())
    return Trained(model, folder / TOKENIZER, config, snapshot.step)
