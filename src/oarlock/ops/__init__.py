"""The operator library: what is listed here is its interface.

Each operator is a folder with a reference in plain torch, and its faster device forms beside it.
"""

from oarlock.ops.add_norm import add_norm
from oarlock.ops.attention import attention
from oarlock.ops.bias_gelu import bias_gelu
from oarlock.ops.cross_entropy import cross_entropy, cross_entropy_and_hits
from oarlock.ops.embed_norm import embed_norm
from oarlock.ops.geglu import geglu
from oarlock.ops.gemm_rate import gemm_rate
from oarlock.ops.gradient_norm import gradient_norm
from oarlock.ops.lamb import lamb_
from oarlock.ops.library import check_choices, serving_form
from oarlock.ops.linear import linear
from oarlock.ops.random_bits import row_keys
from oarlock.ops.rotary import rotary

OPERATORS = (
    "add_norm",
    "attention",
    "bias_gelu",
    "cross_entropy",
    "embed_norm",
    "geglu",
    "gradient_norm",
    "lamb",
    "linear",
    "rotary",
)

__all__ = [
    "OPERATORS",
    "add_norm",
    "attention",
    "bias_gelu",
    "check_choices",
    "cross_entropy",
    "cross_entropy_and_hits",
    "embed_norm",
    "geglu",
    "gemm_rate",
    "gradient_norm",
    "lamb_",
    "linear",
    "rotary",
    "row_keys",
    "serving_form",
]
