"""A run to use."""

from pathlib import Path
from unittest.mock import patch

import pytest
from rich.console import Console

from oarlock.config import CheckpointConfig, EvaluationConfig, MaskingConfig
from oarlock.recipes import recipe
from oarlock.train import pretrain


@pytest.fixture(scope="session")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished fp32 run of 12 steps with checkpoints of 10 and 12; read it only."""
    config = recipe(
        "bert-tiny",
        data=str(data),
        out=str(tmp_path_factory.mktemp("trained") / "run"),
        steps=12,
        seed=5,
        precision="fp32",
        log_every=1,
        masking=MaskingConfig(rate=0.3),
        checkpoint=CheckpointConfig(every=5),
        evaluation=EvaluationConfig(max_sequences=20),
    )
    shape = {"hidden_size": 32, "intermediate_size": 64, "max_length": 48}
    batch = config.batch.model_copy(update={"sequences": 16, "max_tokens_per_microbatch": 300})
    config = config.model_copy(update={"model": config.model.model_copy(update=shape), "batch": batch})
    with patch("oarlock.report.outset.gemm_rate", return_value=1e9):
        return pretrain(config, Console(quiet=True)).folder
