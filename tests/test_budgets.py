"""Sizes and words that the design holds to."""

import ast
import re
from pathlib import Path

import pytest

SOURCES = sorted(Path(__file__).parents[1].joinpath("src").rglob("*.py"))
LIMITS = {"oarlock/train.py": 200, "oarlock/step/step.py": 200, "oarlock/cli/__init__.py": 300}
ANY_FILE = 600


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_files_stay_small(path: Path) -> None:
    limit = next((n for name, n in LIMITS.items() if path.as_posix().endswith(name)), ANY_FILE)
    assert len(path.read_text().splitlines()) <= limit


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_public_functions_and_classes_say_what_they_do(path: Path) -> None:
    tree = ast.parse(path.read_text())
    nodes = [tree, *(node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))]
    silent = [
        getattr(node, "name", "the module")
        for node in nodes
        if not getattr(node, "name", "x").startswith("_") and not ast.get_docstring(node)
    ]
    assert not silent


def test_no_pickle_no_shell() -> None:
    forbidden = re.compile(
        r"\bimport pickle\b|shell=True|os\.system|(?<!\.)\beval\(|weights_only=False|allow_pickle=True"
    )
    guilty = [path.name for path in SOURCES if forbidden.search(path.read_text())]
    assert not guilty
