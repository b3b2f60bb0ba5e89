#!/usr/bin/env bash
# Train a step on two machines and compare it with one process. The machines are two network namespaces on this computer,
# connected by a veth pair and by nothing else. Needs Linux, root and iproute2:
#
#     sudo PYTHON=.venv/bin/python scripts/two_machines.sh [CASE..]
#
# CASE is model:loss:normalize:padded, see tests/integrations/trainers/cases.py. Exit status 0: the gradients are the same.
set -euo pipefail

asked=${PYTHON:-python}
PYTHON=$(command -v "$asked") || { echo "PYTHON=$asked was not found: expected a python with the train extra." >&2; exit 2; }
case $PYTHON in /*) ;; *) PYTHON=$PWD/$PYTHON ;; esac
[ $# -gt 0 ] || set -- llama:ntil:numeric:True
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=numerate-$$-$RANDOM
machines=("$name-0" "$name-1")
addresses=(10.77.0.1 10.77.0.2)
port=29500
logs=$(mktemp -d)

clean_up() {
    for machine in "${machines[@]}"; do
        ip netns pids "$machine" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
        ip netns delete "$machine" 2>/dev/null || true
    done
    wait
    rm -rf "$logs"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

for machine in "${machines[@]}"; do
    ip netns add "$machine"
done
ip link add eth0 netns "${machines[0]}" type veth peer name eth0 netns "${machines[1]}"
for rank in 0 1; do
    ip -n "${machines[rank]}" address add "${addresses[rank]}/24" dev eth0
    ip -n "${machines[rank]}" link set eth0 up
    ip -n "${machines[rank]}" link set lo up
done
echo "two machines: ${machines[0]} at ${addresses[0]}, ${machines[1]} at ${addresses[1]}"

# --multi_gpu means one process per device; the step itself uses the CPU, and so gloo.
launch() {
    PYTHONPATH=src:. GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES="" exec ip netns exec "${machines[$1]}" \
        "$PYTHON" -m accelerate.commands.launch --multi_gpu --num_machines 2 --num_processes 2 --machine_rank "$1" \
        --main_process_ip "${addresses[0]}" --main_process_port "$port" --mixed_precision no --dynamo_backend no \
        tests/integrations/trainers/cases.py "${@:2}" --check
}
for rank in 0 1; do
    launch "$rank" "$@" >"$logs/$rank" 2>&1 &
done
echo "accelerate launch --num_machines 2 --num_processes 2: $*, one and two micro-batches each"

for _ in 0 1; do
    if ! wait -n; then
        tail -n 40 "$logs/0" "$logs/1" >&2
        grep "largest difference" "$logs/0" || echo "a machine failed; the end of both logs is above" >&2
        exit 1
    fi
done
sent=$(ip netns exec "${machines[1]}" cat /sys/class/net/eth0/statistics/tx_bytes)
echo "$(grep "largest difference" "$logs/0"), with $((sent / 1024)) KiB sent from the second machine"
