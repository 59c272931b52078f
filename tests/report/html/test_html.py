import html
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from oarlock.report.html import write_report
from oarlock.testing.runs import fake_data_report, fake_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


class Tags(HTMLParser):
    """Collects the elements of a page, and checks that they are closed in order."""

    VOID = frozenset({"meta", "hr", "br", "img", "input", "link"})

    def __init__(self, page):
        super().__init__()
        self.found, self.open = [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_one_file_that_fetches_nothing(tmp_path):
    path = write_report(fake_run(tmp_path / "run"))
    assert path == tmp_path / "run" / "report.html"
    page = path.read_text()
    tags = Tags(page).found
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & {tag for tag, _ in tags}
    links = [value for _, attributes in tags for name, value in attributes.items() if name in ("href", "src")]
    assert links
    assert all(link.startswith("#") for link in links)
    assert "url(" not in page
    assert "@import" not in page
    for name in ("Loss", "Masked accuracy", "Learning rate", "Gradient norm", "Useful tokens", "GEMM", "Balance"):
        assert name in page


def test_the_data_report_is_in_the_page(tmp_path):
    page = write_report(fake_run(tmp_path)).read_text()
    for expected in (
        "12.3 % of lines were seen before",
        "57 to 64",
        "speeches/1790.txt",
        "ZERO WIDTH JOINER",
        "‹U+200D›",
    ):
        assert expected in page
    assert "83.4 % of a batch would" in page


def test_figures_are_well_formed_svg(tmp_path):
    page = write_report(fake_run(tmp_path)).read_text()
    figures = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)]
    assert len(figures) >= 7
    assert all(len(figure) for figure in figures)


def test_text_never_becomes_markup(tmp_path):
    folder = fake_run(tmp_path / "<b>run</b>")
    target = {"truth": EVIL, "predictions": [{"token": EVIL, "probability": 0.5}]}
    (folder / "samples.json").write_text(json.dumps([{"text": EVIL + " [MASK] " + EVIL, "targets": [target]}]))
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "device": EVIL, "operators": {EVIL: EVIL}, "started": EVIL}))
    (folder / "config.yaml").write_text(json.dumps({"model": {"kind": EVIL}, "steps": EVIL, "precision": EVIL}))
    report = fake_data_report()
    characters = [
        {**one.model_dump(), "before": EVIL, "after": EVIL, "name": EVIL} for one in report.normalizer.characters
    ]
    evil_report = fake_data_report(
        warnings=[EVIL],
        unknown={"count": 1, "share": 0.1, "files": [{"path": EVIL, "tokens": 10, "unknown": 1, "share": 0.1}]},
        undecodable={"count": 1, "files": [{"path": EVIL, "count": 1, "first_line": 1, "first_offset": 0}]},
        special_tokens_in_text={EVIL: 1},
        normalizer={**report.normalizer.model_dump(), "characters": characters},
        tokenizer={**report.tokenizer.model_dump(), "source": EVIL, "normalizer": EVIL},
    )
    (folder / "data_report.json").write_text(evil_report.model_dump_json())
    page = write_report(folder).read_text()
    assert EVIL not in page
    assert html.escape(EVIL, quote=True).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in page
    tags = {tag for tag, _ in Tags(page).found}
    assert not {"script", "img"} & tags


@pytest.mark.parametrize(
    "options",
    [
        {"evaluate_every": 0},
        {"until": 10},
        {"until": 5},
        {"until": 900, "status": "running", "resumed_at": (300,)},
        {"steps": 10, "log_every": 10, "evaluate_every": 10},
    ],
    ids=["no evaluation", "one row", "no row", "killed", "one step row and one evaluation"],
)
def test_runs_of_every_kind_have_a_report(tmp_path, options):
    Tags(write_report(fake_run(tmp_path, **options)).read_text())


@pytest.mark.parametrize("name", ["run.json", "samples.json", "config.yaml", "metrics.jsonl", "data_report.json"])
def test_a_report_without_one_of_the_files(tmp_path, name):
    folder = fake_run(tmp_path)
    (folder / name).unlink(missing_ok=True)
    Tags(write_report(folder).read_text())


def test_a_half_written_row_does_not_stop_a_report(tmp_path):
    folder = fake_run(tmp_path)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2010, "loss"')
    assert write_report(folder).exists()


def test_a_lone_surrogate_does_not_stop_a_report(tmp_path):
    folder = fake_run(tmp_path)
    sample = {"text": "\ud800 [MASK]", "targets": [{"truth": "\ud800", "predictions": []}]}
    (folder / "samples.json").write_text(json.dumps([sample]))
    Tags(write_report(folder).read_text())


def test_a_hundred_thousand_rows_make_a_small_page(tmp_path):
    folder = fake_run(tmp_path, steps=100_000, log_every=1, evaluate_every=500)
    assert write_report(folder).stat().st_size < 1_000_000


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium to lay the page out")
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(tmp_path, width):
    folder = fake_run(tmp_path / ("a_run_with_a_long_name" * 5), resumed_at=(800,))
    samples = json.loads((folder / "samples.json").read_text())
    token = "g" * 100
    target = {"truth": token, "predictions": [{"token": token, "probability": 1.0}]}
    samples.append({"text": f"{token} [MASK]", "targets": [target]})
    (folder / "samples.json").write_text(json.dumps(samples))
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "device": "d" * 200}))
    path = "p" * 200
    files = [{"path": path, "tokens": 10, "unknown": 1, "share": 0.1}]
    report = fake_data_report(warnings=["w" * 200], unknown={"count": 1, "share": 0.1, "files": files})
    (folder / "data_report.json").write_text(report.model_dump_json())
    measured = lay_out(write_report(folder).read_text(), width, tmp_path)
    assert measured["window"] == width
    assert measured["page"] <= width
    assert measured["outside"] == []


def lay_out(page, width, folder):
    """Width of a page in a window of `width`, and the elements that stick out of it."""
    probe = folder / "probe.html"
    page = page.replace("<details>", "<details open>")
    probe.write_text(
        f"""<!doctype html><iframe style="border:0;width:{width}px;height:3000px" srcdoc="{html.escape(page)}"></iframe>
        <pre id="result"></pre><script>
        onload = () => {{
          const frame = document.querySelector("iframe").contentDocument;
          const scrolls = element => element.closest("pre, .scrolls");
          const outside = [...frame.body.querySelectorAll("*")]
            .filter(element => element.getBoundingClientRect().right > {width} && !scrolls(element.parentElement))
            .map(element => element.outerHTML.slice(0, 120));
          const root = frame.documentElement;
          document.querySelector("#result").textContent =
            JSON.stringify({{window: root.clientWidth, page: root.scrollWidth, outside: outside}});
        }};
        </script>""",
        encoding="utf-8",
    )
    switches = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    switches += " --disable-component-update --disable-sync --hide-scrollbars --window-size=1400,3000 --dump-dom"
    profile = folder / "profile"
    command = [CHROMIUM, *switches.split(), f"--user-data-dir={profile}", probe.as_uri()]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return json.loads(html.unescape(re.search(r'<pre id="result">(.*?)</pre>', dumped, re.DOTALL)[1]))
