"""The page on batches: its example runs."""

import re
from pathlib import Path

from oarlock.testing.datasets import toy_dataset, write_toy_dataset

PAGE = Path(__file__).parents[2] / "docs" / "batches.md"


def test_example_runs(tmp_path, monkeypatch):
    write_toy_dataset(tmp_path / "data", toy_dataset(5000))
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    names: dict[str, object] = {}
    exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102 (the page is ours)
    assert names["batch"].step == 10
    assert abs(names["batch"].num_tokens - 65536) < 60
