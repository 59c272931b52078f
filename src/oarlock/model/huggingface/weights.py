"""Weights of a model under the names of a Hugging Face folder, and back; reading weight files without running code."""

import json
from pathlib import Path
from types import ModuleType

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from oarlock.model.encoder import MaskedLM
from oarlock.model.huggingface import bert, modernbert, roberta

KINDS: dict[str, ModuleType] = {"bert": bert, "roberta": roberta, "modernbert": modernbert}

_PADDED = ("encoder.embeddings.words.weight", "head.bias")


def names(model: MaskedLM) -> dict[str, tuple[str, ...]]:
    """For each parameter of the model, the weights of the folder that it is made of (joined along the first axis)."""
    kind = KINDS[model.config.kind]
    patterns = {ours: tuple(kind.PREFIX + name for name in theirs) for ours, theirs in kind.ENCODER.items()}
    patterns |= kind.HEAD
    found = {}
    for parameter, _ in model.named_parameters():
        pattern, layer, leaf = _pattern(parameter, patterns)
        found[parameter] = tuple(name.replace("{i}", layer).replace("*", leaf) for name in patterns[pattern])
    return found


def to_folder(model: MaskedLM) -> dict[str, Tensor]:
    """The model's weights in fp32 under the folder's names; the vocabulary's padding is cut off, a pooler left out.

    A masked-LM loss does not train a pooler, and `transformers` warns of one in a masked-LM folder.
    """
    out: dict[str, Tensor] = {}
    for ours, theirs in names(model).items():
        if ours.startswith("pooler."):
            continue
        weight = model.get_parameter(ours).detach().float().cpu()
        if ours in _PADDED:
            weight = weight[: model.config.vocab_size]
        # Copies, for safetensors refuses tensors that share memory.
        out |= {name: part.clone().contiguous() for name, part in zip(theirs, weight.chunk(len(theirs)), strict=True)}
    return out


def from_folder(model: MaskedLM, weights: dict[str, Tensor]) -> list[str]:
    """Put a folder's weights into the model; returns what the folder lacks and the model keeps as it was.

    A folder of a bare encoder (`BertModel`) has no head, and its names have no prefix. Weights that the model has no
    place for (a next-sentence head) are let go, by name, among the returned lines.

    Raises:
        ValueError: a part of the encoder is missing, or a weight has the wrong shape.
    """
    kind = KINDS[model.config.kind]
    weights = {_canonical(name, kind.PREFIX, kind): tensor for name, tensor in weights.items()}
    missing: list[str] = []
    notes: list[str] = []
    used = {*kind.COPIES, kind.PREFIX + "embeddings.position_ids"}
    for ours, theirs in names(model).items():
        absent = [name for name in theirs if name not in weights]
        used.update(theirs)
        if absent:
            (notes if ours.startswith(("head.", "pooler.")) else missing).extend(absent)
            continue
        joined = torch.cat([weights[name].float() for name in theirs])
        target = model.get_parameter(ours)
        rows = model.config.vocab_size if ours in _PADDED else target.shape[0]
        if joined.shape != (rows, *target.shape[1:]):
            raise ValueError(
                f"{' + '.join(theirs)} has shape {tuple(joined.shape)}, but the folder's config.json asks for "
                f"{(rows, *target.shape[1:])}"
            )
        with torch.no_grad():
            target[:rows] = joined
    if missing:
        raise ValueError(f"the folder lacks weights of the encoder: {', '.join(missing[:5])} ({len(missing)} in all)")
    lines = [f"not in the folder, left at its initial value: {name}" for name in notes]
    return lines + [f"in the folder, but the model has no place for it: {n}" for n in sorted(set(weights) - used)]


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder: safetensors (one file or several), or else an old `pytorch_model.bin`.

    The old format is read with torch's `weights_only`, which refuses anything that would run code.

    Raises:
        ValueError: there are no weights, or they cannot be read.
    """
    for stem, load in (("model.safetensors", _load_safetensors), ("pytorch_model.bin", _load_bin)):
        index = folder / f"{stem}.index.json"
        files = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else [stem]
        if (folder / files[0]).exists():
            weights: dict[str, Tensor] = {}
            for file in files:
                if not (folder / Path(file).name).exists():
                    raise ValueError(f"{folder / file} is named in {index.name} but is not there")
                weights |= load(folder / Path(file).name)
            return weights
    raise ValueError(f"{folder} holds neither model.safetensors nor pytorch_model.bin")


def _load_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged, or no safetensors file: {error}") from error


def _load_bin(path: Path) -> dict[str, Tensor]:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} is not a plain file of weights and was not opened: {error}") from error
    return {name: value for name, value in loaded.items() if isinstance(value, Tensor)}


def _canonical(name: str, prefix: str, kind: ModuleType) -> str:
    """A weight's name in today's terms: with the encoder's prefix; LayerNorm's gamma and beta are weight and bias."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    bare_encoder = name.startswith(("embeddings.", "encoder.", "pooler.", "layers.", "final_norm."))
    return prefix + name if bare_encoder else name


def _pattern(parameter: str, patterns: dict[str, tuple[str, ...]]) -> tuple[str, str, str]:
    """The pattern that a parameter's name fits, its layer number and its last part."""
    parts = parameter.split(".")
    layer = next((part for part in parts if part.isdigit()), "")
    general = ".".join("{i}" if part.isdigit() else part for part in parts)
    stem, _, leaf = general.rpartition(".")
    return (general, layer, leaf) if general in patterns else (f"{stem}.*", layer, leaf)
