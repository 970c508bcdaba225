#!/usr/bin/env bash
# On one GPU: vLLM's and SGLang's tokens a second, updates by every transport, sleep and wake, memory; a run in which vLLM
# and the trainer have the GPU in turns; then the trainers' tests and their speed.
#
#   scripts/gpu_check.sh                  the environments come from the package index
#   scripts/gpu_check.sh WHEELS           they come from a folder of wheels, on a machine without an index
#   scripts/gpu_check.sh --bare           on a machine with nothing but torch: its own Python, no index; eight minutes
#   VLLM_PYTHON=... SGLANG_PYTHON=... scripts/gpu_check.sh    they are there already; an empty one is left out
#
# To fill WHEELS on a machine with an index (same Python and system), after `make install TORCH=torch` there:
#   .venv/bin/pip freeze --exclude-editable >installed.txt
#   for list in installed.txt libs/engines/src/ale_engines/locks/{vllm,sglang}-cuda.txt; do
#     .venv/bin/pip download --dest WHEELS --no-deps -r "$list" pip; done
#
# For --bare, fill wheels/ first, on a machine with an index after `make install` there, and take it along:
#   scripts/gpu_check.sh --wheels --python 3.12    for the other machine's version of Python
# `--bare --device cpu` rehearses it without a GPU, with tiny shapes; `--out FILE` keeps the table.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1-}" in
  --wheels) exec .venv/bin/python scripts/bare_machine.py wheels "${@:2}" ;;
  --bare) exec "${PYTHON:-python3}" scripts/bare_machine.py check "${@:2}" ;;
esac

nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null || {
  echo "There is no GPU here; scripts/gpu_check.sh needs one."; exit 1; }
if [ $# -gt 0 ]; then export PIP_NO_INDEX=1 PIP_FIND_LINKS="$(realpath "$1")"; fi
make install
failed=""
try() {  # NAME COMMAND...: a failure is named at the end, so that it hides no other figure
  echo "== $1"
  "${@:2}" || failed="$failed $1"
}
check_engine() {  # SERVER: its environment is made, unless it is named
  local variable="${1^^}_PYTHON" python
  python="${!variable-}"
  if [ -z "$python" ]; then
    python="$(.venv/bin/ale engine install "$1")" || return 1
  fi
  .venv/bin/python scripts/gpu_check.py "$1" --python "$python"
}
for server in vllm sglang; do
  variable="${server^^}_PYTHON"
  if [ -n "${!variable+set}" ] && [ -z "${!variable}" ]; then echo "== $server is left out"; continue; fi
  try "$server" check_engine "$server"
done
colocated() {  # vLLM and the trainer have one GPU in turns: everything sleeps and wakes
  local made; made="$(mktemp -d)"
  .venv/bin/ale run examples/vllm_torch.yaml --out "$made/run" engine.device=cuda engine.gpu_memory=0.6 \
    ${VLLM_PYTHON:+engine.python="$VLLM_PYTHON"} trainer.device=cuda rl.multiplex=1 rl.steps=6 rl.checkpoint_every=3
  local status=$?
  rm -rf "$made"
  return $status
}
if [ -z "${VLLM_PYTHON+set}" ] || [ -n "$VLLM_PYTHON" ]; then try colocated colocated; fi
try trainers .venv/bin/pytest -q tests/test_gpu.py plugins/trainer_torch/tests plugins/trainer_megatron/tests
try speed .venv/bin/python benchmarks/trainers.py
try memory .venv/bin/python benchmarks/trainer_memory.py
if [ -n "$failed" ]; then echo "These failed:$failed"; exit 1; fi
