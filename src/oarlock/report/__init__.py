"""The only room that reads device values: progress, metrics files, TensorBoard, the HTML report of a run."""

from oarlock.report.drain import StepRecord
from oarlock.report.facts import Guess, RunFacts, Sample, SampleTarget, read_facts, write_facts, write_samples
from oarlock.report.guesses import guesses_table
from oarlock.report.html import write_report
from oarlock.report.machine import machine_facts
from oarlock.report.measured import loader_table, operators_table, training_table
from oarlock.report.metrics import EvaluationRow, MetricsFile, TrainingRow, read_metrics, truncate_after
from oarlock.report.outset import outlook, run_facts
from oarlock.report.processes import process_facts
from oarlock.report.progress import TrainingProgress, measuring_progress, prepare_progress
from oarlock.report.recorder import Bystander, Recorder, RecorderState
from oarlock.report.terminal import data_report_table

__all__ = [
    "Bystander",
    "EvaluationRow",
    "Guess",
    "MetricsFile",
    "Recorder",
    "RecorderState",
    "RunFacts",
    "Sample",
    "SampleTarget",
    "StepRecord",
    "TrainingProgress",
    "TrainingRow",
    "data_report_table",
    "guesses_table",
    "loader_table",
    "machine_facts",
    "measuring_progress",
    "operators_table",
    "outlook",
    "prepare_progress",
    "process_facts",
    "read_facts",
    "read_metrics",
    "run_facts",
    "training_table",
    "truncate_after",
    "write_facts",
    "write_report",
    "write_samples",
]
