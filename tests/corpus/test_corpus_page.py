"""The page on the corpus: its example runs."""

import re
from pathlib import Path

import pytest

from oarlock.testing.texts import write_text

PAGE = Path(__file__).parents[2] / "docs" / "corpus.md"


def test_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts").mkdir()
    write_text(tmp_path / "texts" / "a.txt")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})  # noqa: S102 (the page is ours)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "300"
    assert float(lines[1]) > 2
    assert lines[-1].split()[0] in (tmp_path / "texts" / "a.txt").read_text()
