#!/usr/bin/env bash
# Checks and measures Oarlock on one CUDA GPU, in at most 6 minutes, and writes one JSON file.
#
#     bench/gpu.sh [--out FOLDER] [--seconds 350] [--only PHASE...] [--dry]
#
# FOLDER is bench/results by default; the file in it is named by the GPU. Nothing is installed and nothing is compiled
# but the kernels. Python 3.11 or newer must have: torch 2.11 or newer for CUDA with its triton, numpy, pydantic (with
# pydantic-core, annotated-types, typing-inspection), pyyaml, tokenizers, safetensors, fsspec; and transformers for the
# comparison. What is missing is named at once. PYTHONPATH may hold further folders of packages; PYTHON names the
# interpreter. `--dry` goes through everything on a CPU, at tiny sizes (Triton by its interpreter).
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" -m bench.gpu "$@"
