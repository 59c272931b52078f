"""The driver behind `bench/gpu.sh`: runs each phase of `bench.gpu_phases` in processes of its own, each for its share
of the time, and gathers what they find in one JSON file, written anew after each phase.

An error, or a kernel that breaks its process's GPU context, costs its own phase alone; a phase that runs out of time
leaves what it had found. Imports nothing that must be installed.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PYDANTIC = ("pydantic", "pydantic_core", "annotated_types", "typing_inspection")
NEEDED = ("torch", "triton", "numpy", *PYDANTIC, "yaml", "tokenizers", "safetensors", "fsspec")
OPERATORS = sorted(path.parent.name for path in (ROOT / "src/oarlock/ops").glob("*/cases.py"))
ERROR_LINES = 12
SHOWN = 2_000  # characters of a phase's findings on the terminal


class Phase(NamedTuple):
    """A part of the work."""

    name: str
    seconds: int
    """That it may take, of the time that is left."""
    jobs: tuple[tuple[str, ...], ...] = ((),)
    """Arguments of its processes; where there are several, they run beside each other."""


PHASES = (
    Phase("machine", 40),
    Phase("check", 120, tuple((name, dtype) for dtype in ("float32", "bfloat16") for name in OPERATORS)),
    Phase("steps", 60),
    Phase("train", 75),
    Phase("attention", 45),
    Phase("peers", 120),
    Phase("operators", 60),
)


def main() -> None:
    options = parse_options()
    refuse_missing()
    deadline = time.monotonic() + options.seconds
    report: dict[str, Any] = {}
    path = options.out / "gpu-dry.json"
    for phase in PHASES:
        if options.only and phase.name not in options.only:
            continue
        budget = min(phase.seconds, deadline - time.monotonic())
        report[phase.name] = run_phase(phase, budget, options.dry) if budget > 5 else {"status": "no time was left"}
        if "gpu" in report.get("machine", {}):
            path = options.out / f"gpu-{re.sub(r'[^a-z0-9]+', '-', report['machine']['gpu'].lower())}.json"
        options.out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")
        print(f"{phase.name}: {json.dumps(report[phase.name])[:SHOWN]}", flush=True)
        if phase.name == "machine" and report["machine"]["status"] != "done":
            sys.exit("the GPU cannot be used; see above")
    print(f"written: {path}")
    if any(result["status"] != "done" for result in report.values()):
        sys.exit("not every phase was done")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/gpu.sh")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results", help="folder of the JSON file")
    parser.add_argument("--seconds", type=float, default=350, help="for everything")
    parser.add_argument("--only", nargs="+", choices=[phase.name for phase in PHASES], help="phases, in place of all")
    parser.add_argument("--dry", action="store_true", help="on a CPU, at tiny sizes, to try the script itself")
    return parser.parse_args()


def refuse_missing() -> None:
    """End at once, naming every package that is missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(
            f"missing: {', '.join(missing)}. Where nothing can be installed, fetch wheels elsewhere (`pip download "
            f"--only-binary=:all: --python-version {sys.version_info[0]}.{sys.version_info[1]} ...`), unpack them "
            "(`pip install --no-index --no-deps --target FOLDER *.whl`) and add FOLDER to PYTHONPATH"
        )


def run_phase(phase: Phase, seconds: float, dry: bool) -> dict[str, Any]:
    """What the phase found, its status (`done`, or what went wrong) and the seconds it took."""
    start = time.monotonic()
    beside = (os.cpu_count() or 1) if len(phase.jobs) > 1 else 1
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(beside) as pool:
        found = list(pool.map(lambda job: run_job(phase.name, job, start + seconds, dry, Path(folder)), phase.jobs))
    took = round(time.monotonic() - start, 1)
    if len(found) == 1:
        return {**found[0], "seconds": took}
    results = {" ".join(job): result for job, result in zip(phase.jobs, found, strict=True)}
    failed = [name for name, result in results.items() if result["status"] != "done"]
    return {"status": f"failed: {', '.join(failed)}" if failed else "done", "seconds": took, "jobs": results}


def run_job(name: str, job: tuple[str, ...], deadline: float, dry: bool, folder: Path) -> dict[str, Any]:
    """What one process found before it ended or its time ran out."""
    path = folder / ("-".join((name, *job)) + ".json")
    log = path.with_suffix(".log")
    command = [sys.executable, "-W", "ignore", "-m", "bench.gpu_phases", name, *job, "--to", str(path)]
    with log.open("w") as output:
        process = subprocess.Popen(
            command + ["--dry"] * dry, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(max(1.0, deadline - time.monotonic()))
            status = "done" if code == 0 else f"failed with status {code}"
        except subprocess.TimeoutExpired:
            status = "out of time"
            os.killpg(process.pid, signal.SIGKILL)  # with what a compiler has started
            process.wait()
    result = json.loads(path.read_text()) if path.exists() else {}
    if status != "done":
        result["error"] = log.read_text(errors="replace").splitlines()[-ERROR_LINES:]
    return {"status": status, **result}


if __name__ == "__main__":
    main()
