"""The command `bench`: figures of this machine as tables, and as JSON."""

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import RenderableType
from tyro.conf import Positional, arg

from oarlock.cli.console import out
from oarlock.recipes import recipe

VOCAB_SIZE = 30522


def bench(
    what: Positional[Literal["data", "ops", "train"]],
    /,
    operators: Annotated[Positional[tuple[str, ...]], arg(metavar="OPERATOR ...")] = (),
    recipe_name: Annotated[str, arg(name="recipe")] = "bert-mini",
    sequences: int = 32,
    precision: Literal["bf16", "fp32"] = "bf16",
    workers: int = 2,
    to: Annotated[Path | None, arg(name="json")] = None,
) -> None:
    """Measure this machine, at the sequence lengths of BERT's Wikipedia data.

    Args:
        what: `data`: how fast batches are built; `ops`: each operator beside the same work in plain torch; `train`: how
            fast a model trains, its share of the GEMM rate, and the parts of a step.
        operators: For `ops`: which of them; all where none is named.
        recipe_name: For `train`: the model, by its recipe.
        sequences: For `train`: sequences in a batch.
        precision: For `train` and `ops`: bf16 (with fp32 master weights), or fp32.
        workers: For `data`: processes that build batches.
        to: File for all figures.
    """
    # Before torch is loaded: its profiler else prints lines of its own.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    if what == "data":
        figures, table = _data(workers)
    elif what == "ops":
        figures, table = _operators(operators, precision)
    else:
        figures, table = _train(recipe_name, sequences, precision)
    out.print(table)
    if to is not None:
        from oarlock.report import machine_facts
        from oarlock.step import choose_device

        to.write_text(json.dumps({"machine": machine_facts(choose_device("auto"))} | figures, indent=1) + "\n")


def _data(workers: int) -> tuple[dict[str, Any], RenderableType]:
    from oarlock.batches.measure import measure_loader
    from oarlock.report import loader_table, measuring_progress

    with measuring_progress(out, "building batches") as on_progress:
        figures = measure_loader(workers, on_progress=on_progress)
    return figures, loader_table(figures)


def _operators(names: tuple[str, ...], precision: str) -> tuple[dict[str, Any], RenderableType]:
    from oarlock.ops.measure import benchmark_cases, measure_case
    from oarlock.parallel import DTYPES
    from oarlock.report import measuring_progress, operators_table
    from oarlock.step import choose_device

    cases, device = benchmark_cases(names), choose_device("auto")
    rows = []
    with measuring_progress(out, "timing operators") as on_progress:
        for done, (name, case) in enumerate(cases, start=1):
            rows += measure_case(name, case, device, DTYPES[precision])
            on_progress(done, len(cases))
    return {"precision": precision, "operators": [row._asdict() for row in rows]}, operators_table(rows)


def _train(name: str, sequences: int, precision: str) -> tuple[dict[str, Any], RenderableType]:
    from oarlock.report import measuring_progress, training_table
    from oarlock.step.measure import measure_training

    model = recipe(name, data="", out="", steps=1).model.model_copy(update={"vocab_size": VOCAB_SIZE})
    with measuring_progress(out, f"training {name}") as on_progress:
        figures = measure_training(model, num_sequences=sequences, precision=precision, on_progress=on_progress)
    return {"model": name, "precision": precision, "sequences": sequences, **figures}, training_table(figures)
