"""The only room that reads device values: progress, metrics files, TensorBoard, the HTML report of a run."""

from oarlock.report.drain import StepRecord
from oarlock.report.metrics import EvaluationRow, MetricsFile, TrainingRow, read_metrics, truncate_after
from oarlock.report.progress import TrainingProgress, prepare_progress
from oarlock.report.recorder import Recorder, RecorderState

__all__ = [
    "EvaluationRow",
    "MetricsFile",
    "Recorder",
    "RecorderState",
    "StepRecord",
    "TrainingProgress",
    "TrainingRow",
    "prepare_progress",
    "read_metrics",
    "truncate_after",
]
