"""Configuration: frozen, validated values; every field is documented where it is declared."""

from oarlock.config.base import Frozen
from oarlock.config.files import describe, differences, read_run_config, refuse_moved, write_run_config
from oarlock.config.model import ModelConfig, ModelKind
from oarlock.config.plan import Plan
from oarlock.config.run import (
    BatchConfig,
    CheckpointConfig,
    EvaluationConfig,
    MaskingConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
)

__all__ = [
    "BatchConfig",
    "CheckpointConfig",
    "EvaluationConfig",
    "Frozen",
    "MaskingConfig",
    "ModelConfig",
    "ModelKind",
    "OptimizerConfig",
    "Plan",
    "RunConfig",
    "ScheduleConfig",
    "describe",
    "differences",
    "read_run_config",
    "refuse_moved",
    "write_run_config",
]
