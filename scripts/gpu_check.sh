#!/usr/bin/env bash
# On one GPU: the trainers' tests and their speed, then vLLM's and SGLang's: tokens a second, updates by every transport,
# sleep and wake, memory.
#
#   scripts/gpu_check.sh                  the environments come from the package index
#   scripts/gpu_check.sh WHEELS           they come from a folder of wheels, on a machine without an index
#   VLLM_PYTHON=... SGLANG_PYTHON=... scripts/gpu_check.sh    they are there already; an empty one is left out
#
# To fill WHEELS on a machine with an index (same Python and system), after `make install TORCH=torch` there:
#   .venv/bin/pip freeze --exclude-editable >installed.txt
#   for list in installed.txt libs/engines/src/ale_engines/locks/{vllm,sglang}-cuda.txt; do
#     .venv/bin/pip download --dest WHEELS --no-deps -r "$list" pip; done
set -euo pipefail
cd "$(dirname "$0")/.."

nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null || {
  echo "There is no GPU here; scripts/gpu_check.sh needs one."; exit 1; }
if [ $# -gt 0 ]; then export PIP_NO_INDEX=1 PIP_FIND_LINKS="$(realpath "$1")"; fi
make install
echo "== trainers"
.venv/bin/pytest -q tests/test_gpu.py plugins/trainer_torch/tests plugins/trainer_megatron/tests
.venv/bin/python benchmarks/trainers.py
.venv/bin/python benchmarks/trainer_memory.py
for server in vllm sglang; do
  variable="${server^^}_PYTHON"
  if [ -z "${!variable+set}" ]; then
    .venv/bin/ale engine install "$server"
    declare "$variable=$(.venv/bin/python -c "from ale_engines.environments import find_python; print(find_python('$server'))")"
  fi
  if [ -z "${!variable}" ]; then echo "== $server is left out"; continue; fi
  echo "== $server"
  .venv/bin/python scripts/gpu_check.py "$server" --python "${!variable}"
done
