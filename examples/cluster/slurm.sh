#!/usr/bin/env bash
# A run on the nodes of a Slurm job. What follows the script's name goes to `ale run`:
#
#   sbatch examples/cluster/slurm.sh FILE run_dir=/shared/runs
#   sbatch examples/cluster/slurm.sh --resume /shared/runs/NAME
#
# Submit it in a folder that all nodes share. ALE's environment is `.venv` there, or VENV=FOLDER before `sbatch`.
# Without GPUs, take out the line `--gpus-per-node`.
#SBATCH --job-name=ale
#SBATCH --output=ale-%j.log
#SBATCH --nodes=2
#SBATCH --exclusive
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@600
set -euo pipefail

environment=$(realpath "${VENV:-.venv}")
export PATH="$environment/bin:$PATH"

# This script runs on the first node, which becomes Ray's head.
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
ip=$(python -c 'import ray; print(ray.util.get_node_ip_address())')
port=$((20000 + SLURM_JOB_ID % 10000))
address=$ip:$port

# Whoever reaches Ray's ports could run programs in your name: only who has the token may.
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0

start_ray() { # NODE OPTION...
  srun --nodes=1 --ntasks=1 --nodelist="$1" --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    ray start "${@:2}" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
}

start_ray "${nodes[0]}" --head --node-ip-address="$ip" --port="$port" --include-dashboard=false
for _ in {1..120}; do
  if (exec 3<>"/dev/tcp/$ip/$port") 2>/dev/null; then break; fi
  sleep 1
done
for node in "${nodes[@]:1}"; do
  start_ray "$node" --address="$address"
done

# A run is refused if the nodes that are there have no room for it, so wait for all of them.
python - "$address" "$SLURM_JOB_NUM_NODES" <<'PYTHON'
import sys
import time

import ray

address, wanted = sys.argv[1], int(sys.argv[2])
ray.init(address=address, logging_level="ERROR", log_to_driver=False)
until = time.monotonic() + 300
while (there := sum(node["Alive"] for node in ray.nodes())) < wanted:
    if time.monotonic() > until:
        sys.exit(f"Of {wanted} nodes {there} have joined Ray in 300 s.")
    time.sleep(1)
PYTHON

ale run "$@" cluster.address="$address" &
run=$!
trap 'kill -TERM "$run"' TERM # ten minutes before the end: the step is finished, and a checkpoint is left
status=0
wait "$run" || status=$?
while kill -0 "$run" 2>/dev/null; do # the signal has ended the wait, not the run
  status=0
  wait "$run" || status=$?
done
exit "$status" # at which Slurm ends Ray, too
