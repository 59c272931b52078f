"""What the pages say is true: their commands parse, their links lead somewhere, their examples run."""

import functools
import json
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from oarlock import cli
from oarlock.config import write_run_config
from oarlock.recipes import RECIPES, recipe
from oarlock.testing.texts import write_text

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
# The other pages' examples need data of their own, and have tests of their own beside their rooms' tests.
SELF_CONTAINED = [ROOT / "docs" / name for name in ("config.md", "model.md", "ops.md")]
SMALLER = {r"\bsteps([ =])\d+": r"steps\g<1>3", r"modernbert-mini": "modernbert-tiny", r"\b4096\b": "1024"}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    lines = "\n".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("oarlock ")]


def arguments(command: str) -> list[str]:
    words = shlex.split(command, comments=True)[1:]
    return words[: words.index(">")] if ">" in words else words


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def smaller(text: str) -> str:
    for pattern, replacement in SMALLER.items():
        text = re.sub(pattern, replacement, text)
    return text


def exit_code(words: list[str]) -> int:
    try:
        return cli.main(words)
    except SystemExit as exit_:
        return int(exit_.code or 0)


def output(example: str) -> str:
    """What Python code prints, run as a reader runs it: in a process of its own."""
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back what the command line sets


@pytest.fixture
def only_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands with their own arguments that do nothing."""
    idle = {name: functools.wraps(command)(lambda *_, **__: None) for name, command in cli.COMMANDS.items()}
    monkeypatch.setattr(cli, "COMMANDS", idle)


@pytest.fixture
def texts() -> None:
    """A folder of text files in which a blank line ends a document."""
    Path("texts").mkdir()
    for seed in range(2):
        file = write_text(Path(f"texts/{seed}.txt"), seed=seed)
        file.write_text(file.read_text().replace("\n", "\n\n"))


@pytest.mark.usefixtures("only_parsing")
@pytest.mark.parametrize("command", [c for page in PAGES for c in commands(page)])
def test_commands_parse(command: str) -> None:
    words = arguments(command)
    for name in words:
        if name.endswith(".yaml"):
            Path(name).parent.mkdir(exist_ok=True)
            write_run_config(Path(name), recipe(RECIPES[0], data="data", out="run", steps=10))
    assert exit_code(words) == 0


@pytest.mark.usefixtures("only_parsing")
@pytest.mark.parametrize("words", ("train bert-mini --data d --out r --steps 3 --no-such 1", "prepare", "no-such"))
def test_a_wrong_command_does_not_parse(words: str) -> None:
    assert exit_code(words.split()) == 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_named_in_the_text_exist(page: Path) -> None:
    named = re.findall(r"`oarlock ([a-z][\w-]*)", page.read_text())
    assert set(named) <= cli.COMMANDS.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


def test_the_table_of_recipes() -> None:
    rows = re.findall(r"^\| (\w+) ((?:\| [\d.,]+ ){7})\|$", (ROOT / "docs" / "config.md").read_text(), re.MULTILINE)
    assert {f"{kind}-{size}" for size, _ in rows for kind in ("bert", "roberta", "modernbert")} == set(RECIPES)
    for size, cells in rows:
        bert, modern = (recipe(f"{kind}-{size}", data="d", out="r", steps=1) for kind in ("bert", "modernbert"))
        shown = [float(cell.replace(",", "")) for cell in cells.split("|")[1:]]
        assert shown == [
            *(bert.model.hidden_size, bert.model.num_heads, bert.model.num_layers, bert.model.intermediate_size),
            *(modern.model.num_layers, modern.model.intermediate_size, bert.optimizer.learning_rate),
        ]


@pytest.mark.usefixtures("texts")
def test_the_example_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    """From text to a filled mask, by the commands and then by `transformers`."""
    for command in commands(README):
        assert exit_code(arguments(smaller(command))) == 0, capsys.readouterr()
    assert Path("run/report.html").exists()
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 3
    loading, _ = blocks(README, "python")
    assert re.search(r"the people of the .* states", output(loading), re.IGNORECASE)


@pytest.mark.usefixtures("texts")
def test_the_same_from_python() -> None:
    _, example = blocks(README, "python")
    output(smaller(example))
    assert json.loads(Path("model/config.json").read_text())["architectures"] == ["ModernBertForMaskedLM"]


@pytest.mark.parametrize("page", SELF_CONTAINED, ids=lambda page: page.name)
def test_examples_of_the_pages_run(page: Path) -> None:
    for example in blocks(page, "python"):
        output(example)
