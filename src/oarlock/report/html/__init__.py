"""`report.html`: one file that shows a whole run, with nothing to fetch and no script."""

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from oarlock.report import formats
from oarlock.report.html.chart import SIZE
from oarlock.report.html.curves import detail_charts, loss_chart
from oarlock.report.html.data import data_section
from oarlock.report.html.run import Run, read_run
from oarlock.report.html.samples import pictures
from oarlock.report.html.summary import cards, configuration, process_imbalance, processes, subtitle, verdicts

REPORT = "report.html"


def write_report(run_folder: Path) -> Path:
    """Write RUN/report.html from what lies in the run folder, whatever is missing, and return its path.

    Raises ValueError where the folder holds no run, or naming the file that cannot be read.
    """
    text = render(read_run(run_folder))
    path = run_folder / REPORT
    aside = path.with_suffix(".html.partial")
    # A lone surrogate in a sample cannot be encoded, and is not worth a report.
    aside.write_text(text, encoding="utf-8", errors="replace")
    aside.replace(path)
    return path


def render(run: Run) -> str:
    """The page. Everything is escaped by the template engine; nothing is marked safe."""
    environment = Environment(
        loader=PackageLoader("oarlock.report.html", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(duration=formats.duration, percent=formats.percent, count=formats.count, size=SIZE)
    return environment.get_template("report.html").render(
        run=run,
        subtitle=subtitle(run),
        verdicts=verdicts(run),
        cards=cards(run),
        loss=loss_chart(run),
        details=detail_charts(run),
        pictures=pictures(run.samples),
        configuration=configuration(run),
        processes=processes(run),
        process_imbalance=process_imbalance(run) if run.facts.processes else None,
        data=None if run.data_report is None else data_section(run.data_report),
    )
