"""The figures of a run: which curves, and what each means."""

from collections.abc import Callable

from oarlock.report import formats
from oarlock.report.html.chart import Chart, Level, Series, chart
from oarlock.report.html.run import Run
from oarlock.report.metrics import TrainingRow


def loss_chart(run: Run) -> Chart:
    """Training and evaluation loss, with the unigram baseline as a level."""
    baseline = run.facts.unigram_baseline
    return chart(
        "Loss, nats a target",
        "Lower is better. A model that has only learned how often each token occurs stays on the dashed line, the "
        "unigram baseline; below it, the model uses the words around the mask. Evaluation above training that keeps "
        "rising means the model learns the training text by heart.",
        [
            _of_training(run, "training", "train", lambda row: row["loss"]),
            Series(
                "evaluation",
                "eval",
                [row["step"] for row in run.evaluations],
                [row["eval_loss"] for row in run.evaluations],
            ),
        ],
        levels=[] if baseline is None else [Level("unigram baseline", "baseline", baseline)],
        marks=run.facts.resumed_at,
        marks_label="resumed",
        show=formats.loss,
    )


def detail_charts(run: Run) -> list[Chart]:
    """The other curves, in reading order."""
    marks = run.facts.resumed_at
    accuracy = Series(
        "evaluation",
        "eval",
        [row["step"] for row in run.evaluations],
        [100 * row["eval_accuracy"] for row in run.evaluations],
    )
    return [
        chart(
            "Masked accuracy, %",
            "Share of the masked tokens of held-out documents whose likeliest prediction is the right one.",
            [accuracy],
            marks=marks,
            show="{:.1f} %".format,
            holds=[0.0],
        ),
        chart(
            "Learning rate",
            "Of the optimizer's main group: warm-up, then the schedule of the configuration.",
            [_of_training(run, "learning rate", "train", lambda row: row["learning_rate"])],
            marks=marks,
            show="{:.3g}".format,
            holds=[0.0],
        ),
        chart(
            "Gradient norm",
            "Global norm before clipping, on a logarithmic axis. Spikes that the loss follows ask for a lower learning "
            "rate or a longer warm-up.",
            [_of_training(run, "gradient norm", "train", lambda row: row["grad_norm"])],
            marks=marks,
            show="{:.3g}".format,
            log=True,
        ),
        chart(
            "Useful tokens a second",
            "Tokens of the text itself: padding and filler never count. Time spent on evaluations is left out.",
            [_of_training(run, "tokens/s", "train", lambda row: row["useful_tokens_per_second"])],
            marks=marks,
            show=formats.count,
            holds=[0.0],
        ),
        chart(
            "Share of the GEMM rate, %",
            "The model's arithmetic a second against the matrix-multiply rate measured on this machine: how well the "
            "hardware is used, whatever its speed.",
            [_of_training(run, "GEMM share", "train", lambda row: 100 * row["gemm_share"])],
            marks=marks,
            show="{:.1f} %".format,
            holds=[0.0],
        ),
        chart(
            "Balance, largest / mean tokens",
            "Tokens of the fullest micro-batch over the mean. 1 is perfect; at 1.05, devices that work side by side "
            "wait 5 % of the time.",
            [_of_training(run, "imbalance", "train", lambda row: row["imbalance"])],
            marks=marks,
            show="{:.3f}".format,
            holds=[1.0, 1.05],
        ),
    ]


def _of_training(run: Run, label: str, style: str, value: Callable[[TrainingRow], float]) -> Series:
    return Series(label, style, [row["step"] for row in run.training], [value(row) for row in run.training])
