"""The operator library: what is listed here is its interface.

Each operator is a folder with a reference in plain torch, and its faster device forms beside it.
"""

from oarlock.ops.attention import attention
from oarlock.ops.cross_entropy import cross_entropy, cross_entropy_and_hits
from oarlock.ops.dropout import dropout_add
from oarlock.ops.embedding import embedding
from oarlock.ops.geglu import geglu
from oarlock.ops.gemm_rate import gemm_rate
from oarlock.ops.library import check_choices, serving_form
from oarlock.ops.random_bits import row_keys
from oarlock.ops.rotary import rotary

OPERATORS = ("attention", "cross_entropy", "dropout_add", "embedding", "geglu", "rotary")

__all__ = [
    "OPERATORS",
    "attention",
    "check_choices",
    "cross_entropy",
    "cross_entropy_and_hits",
    "dropout_add",
    "embedding",
    "geglu",
    "gemm_rate",
    "rotary",
    "row_keys",
    "serving_form",
]
