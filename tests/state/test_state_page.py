"""The code on docs/state.md runs."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "state.md"


def test_the_example_of_the_page(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "3 {'useful_tokens': 12.0}\n", done.stderr
    left = sorted(path.name for path in (tmp_path / "my-run" / "checkpoints").iterdir())
    assert left == ["step-00000002", "step-00000003"]
