"""A configuration fitted to the data set that it is to train on, or refused."""

from pathlib import Path

from pydantic import ValidationError

from oarlock.config import ModelConfig, RunConfig, describe
from oarlock.config.folders import fetch
from oarlock.corpus import Dataset, Manifest
from oarlock.model import read_config


def fit_to_data(config: RunConfig, dataset: Dataset) -> RunConfig:
    """The configuration with what it leaves to the data set (or to the folder of initial weights) filled in.

    Raises:
        ValueError: the two do not fit together; the message has both numbers.
    """
    manifest = dataset.manifest
    model = config.model
    if config.init_from is not None and model.vocab_size == 0:  # else it is fitted already, as a run's own config.yaml
        model = _start_from(fetch(config.init_from), model, manifest)
    if model.vocab_size not in (0, manifest.vocab_size):
        raise ValueError(
            f"model.vocab_size is {model.vocab_size}, but the tokenizer of {config.data} has {manifest.vocab_size} "
            "ids; leave it at 0 to take the tokenizer's, or, to go on with a run, prepare the data as it was"
        )
    longest = max(manifest.train.longest, manifest.validation.longest)
    if longest > model.max_length:
        raise ValueError(
            f"the longest sequence of {config.data} has {longest} tokens, but model.max_length is {model.max_length}; "
            f"raise model.max_length, or prepare the data with --max-length {model.max_length}"
        )
    filled = {"vocab_size": manifest.vocab_size, "pad_id": manifest.special.pad}
    try:
        return RunConfig(**config.model_dump() | {"model": model.model_dump() | filled})
    except ValidationError as error:
        raise ValueError(describe(error)) from error


def _start_from(folder: Path, model: ModelConfig, manifest: Manifest) -> ModelConfig:
    """The shape of a folder of initial weights, with the run's own dropout, pooler and operator forms."""
    shape = read_config(folder)
    if shape.kind != model.kind:
        raise ValueError(
            f"the weights in {folder} are of a {shape.kind}, but the run is of a {model.kind}; start from a "
            f"{shape.kind} recipe"
        )
    if shape.vocab_size != manifest.vocab_size:
        raise ValueError(
            f"the weights in {folder} know {shape.vocab_size} token ids, the data set {manifest.vocab_size}; prepare "
            f"the data with that model's tokenizer: --tokenizer {folder}"
        )
    if shape.kind == "roberta" and shape.pad_id != manifest.special.pad:
        raise ValueError(
            f"the weights in {folder} count positions from padding index {shape.pad_id}, but the data set's tokenizer "
            f"pads with {manifest.special.pad}; prepare the data with that model's tokenizer: --tokenizer {folder}"
        )
    own = {name: getattr(model, name) for name in ("dropout", "attention_dropout", "pooler", "ops")}
    return shape.model_copy(update=own)
