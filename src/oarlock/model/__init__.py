"""Packed single-device models.

`build_model` makes one from a configuration, `load_huggingface` from a folder. What the architectures share is in
`layers.py`, `embeddings.py` and `encoder.py`; what each chooses is in `bert.py`, `roberta.py` and `modernbert.py`.
"""

from oarlock.model.build import build_model
from oarlock.model.encoder import Encoder, MaskedLM
from oarlock.model.flops import flops_per_token
from oarlock.model.huggingface import Exported, export_huggingface, load_huggingface, read_config
from oarlock.model.predictions import Guess, fill_mask, likeliest, sample_predictions

__all__ = [
    "Encoder",
    "Exported",
    "Guess",
    "MaskedLM",
    "build_model",
    "export_huggingface",
    "fill_mask",
    "flops_per_token",
    "likeliest",
    "load_huggingface",
    "read_config",
    "sample_predictions",
]
