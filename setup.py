"""Builds the CPU kernels: every operator's `cpu*.cpp`, once for each level of instructions of `oarlock.ops.native`.

They are optional: where there is no compiler, or it fails, the installation goes on without them and says so.
"""

import platform
import sys
from pathlib import Path

from setuptools import Extension, setup

LEVELS = {
    "avx2": ["-march=x86-64-v3"],
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    "avx512_bf16": ["-march=x86-64-v4", "-mavx512bf16", "-mprefer-vector-width=512"],
    "amx": ["-march=sapphirerapids", "-mprefer-vector-width=512"],
}
# Errors and traps of floating-point arithmetic are not read, which lets loops become vectors; values are untouched.
FLAGS = ["-O3", "-std=c++17", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"]
OPS = Path("src/oarlock/ops")

if sys.platform == "linux" and platform.machine() == "x86_64":
    sources = sorted(str(path) for path in OPS.glob("*/cpu*.cpp"))
    headers = sorted(str(path) for path in OPS.glob("*/*.h"))
    extensions = [
        Extension(
            f"oarlock.ops.native._{level}",
            sources,
            depends=headers,
            include_dirs=[str(OPS / "native")],
            extra_compile_args=[*FLAGS, *flags],
            extra_link_args=["-fopenmp"],
            optional=True,
        )
        for level, flags in LEVELS.items()
    ]
else:
    extensions = []

setup(ext_modules=extensions)
