"""Cases of the sum of embeddings, LayerNorm and dropout.

Suffixes: T tokens, R rows of a table, D features.
"""

import torch
from torch import Tensor
from torch.nn import functional

from oarlock.ops.case import Case, Inputs, OperatorCases, random, rows_keys
from oarlock.ops.embed_norm import embed_norm


def _case(
    num_tokens: int,
    size: int,
    table_sizes: tuple[int, ...],
    dropout: float = 0.0,
    *,
    bias: bool = True,
    benchmark: bool = False,
) -> Case:
    def inputs(device: torch.device, dtype: torch.dtype) -> Inputs:
        return {
            "tables": [
                random(num_rows, size, seed=i, device=device, dtype=dtype) for i, num_rows in enumerate(table_sizes)
            ],
            "rows": [_frequencies(num_tokens, num_rows, seed=i).to(device) for i, num_rows in enumerate(table_sizes)],
            "weight_D": random(size, seed=3, device=device, dtype=dtype),
            "bias_D": random(size, seed=4, device=device, dtype=dtype) if bias else None,
            "epsilon": 1e-5,
            "dropout": dropout,
            "keys_T": rows_keys(num_tokens, device) if dropout else None,
        }

    tables = " + ".join(f"{num_rows:,}" for num_rows in table_sizes)
    name = f"{num_tokens:,} x {size} of {tables}, dropout {dropout}{'' if bias else ', no bias'}"
    return Case(name, inputs, benchmark)


def _frequencies(num_tokens: int, num_rows: int, seed: int) -> Tensor:
    """Row of every token; as with words, the first rows are frequent, and many of a large table do not occur."""
    uniform = torch.rand(num_tokens, generator=torch.Generator().manual_seed(seed))
    return (num_rows * uniform**4).long()


def _plain(
    tables: list[Tensor],
    rows: list[Tensor],
    weight_D: Tensor,
    bias_D: Tensor | None,
    epsilon: float,
    dropout: float,
    keys_T: Tensor | None,
) -> Tensor:
    x_TD = functional.embedding(rows[0], tables[0])
    for table, row in zip(tables[1:], rows[1:], strict=True):
        x_TD = x_TD + functional.embedding(row, table)
    return functional.dropout(functional.layer_norm(x_TD, weight_D.shape, weight_D, bias_D, epsilon), dropout)


CASES = OperatorCases(
    embed_norm,
    _plain,
    (
        _case(0, 24, (9, 5, 2), 0.1),
        _case(1, 24, (9, 5, 2)),
        _case(63, 37, (90, 50, 2)),
        _case(63, 37, (90, 50, 2), 0.1),
        _case(63, 37, (90,), 0.5, bias=False),
        _case(63, 37, (1, 90), bias=False),
        _case(3000, 40, (700, 512, 1), 0.5),
        _case(4096, 768, (30528, 512, 2), 0.1, benchmark=True),
        _case(4096, 768, (30528,), bias=False, benchmark=True),
        _case(8192, 256, (30528, 512, 2), 0.1, benchmark=True),
        _case(8192, 256, (30528,), bias=False, benchmark=True),
    ),
    differentiable=("tables", "weight_D", "bias_D"),
)
