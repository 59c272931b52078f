"""The builds of the CPU kernels that this machine runs but does not choose, and the forms that serve without any."""

import subprocess
import sys
from pathlib import Path

import pytest

import oarlock
from oarlock.ops import native

PACKAGE = Path(oarlock.__file__).parent
OTHERS = [*(name for name in native.LEVELS if native.runs(name) and name != native.level()), None]

CHECK = """
import sys
import torch
from oarlock.ops import native
from oarlock.ops.cases import OPERATOR_CASES
from oarlock.ops.compare import check_equal

assert str(native.level()) == sys.argv[1], native.level()
checked = 0
for name, operator in OPERATOR_CASES.items():
    for case in operator.cases:
        for dtype in () if case.benchmark else native.DTYPES:
            check_equal(operator, case, operator.function, torch.device("cpu"), dtype)
            checked += 1
print(checked)
"""


@pytest.mark.parametrize("level", OTHERS, ids=str)
def test_equals_the_reference(level: str | None, tmp_path: Path) -> None:
    """In a package that has that build alone, as an installation on a lesser machine would choose it."""
    for path in PACKAGE.rglob("*"):
        if path.is_file() and (path.suffix != ".so" or path.name.startswith(f"_{level}.")):
            copy = tmp_path / "oarlock" / path.relative_to(PACKAGE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(path)
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(level)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
