#!/bin/bash
# Starts a real `vllm serve` on this machine's CPU, with mediagate's plugin, in the foreground.
#
#   launch/vllm-worker.sh [--port N] [--kv-events-port N] [any flag of `vllm serve`...]
#
# Without MODEL=/path/to/model it serves a tiny Qwen3-VL with random weights as "tiny-vlm", made on the spot.
# Ready when GET /health answers 200: after about 95 CPU-seconds. Needs 3.5 GB of memory.
#
# --kv-events-port has the worker publish its KV events on port N and replay them on N + 1, which the route policy mm-kv
# needs. vLLM publishes on all interfaces and asks nobody for a key: keep those ports off public networks.
#
# VLLM_PLUGINS chooses the plugins (default: mediagate; it names general and endpoint plugins together, and all that are
# not named stay out). `VLLM_PLUGINS=` loads none.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
python="$root/.venv/bin/python"

port=8000
kv_events=()
while :; do
    case "${1:-}" in
    --port) port="${2:?--port needs a number}" ;;
    --kv-events-port)
        events="${2:?--kv-events-port needs a number}"
        kv_events=(--enable-prompt-tokens-details --kv-events-config
            "{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \"endpoint\": \"tcp://*:$events\", \"replay_endpoint\": \"tcp://*:$((events + 1))\"}")
        ;;
    *) break ;;
    esac
    shift 2
done

if ! [ -x "$root/.venv/bin/vllm" ]; then
    "$root/launch/setup-python.sh" --vllm
fi
model="${MODEL:-$("$python" "$root/tests/e2e/tiny_model.py")}"
name="$(basename "$model")"
[ -n "${MODEL:-}" ] || name=tiny-vlm

export VLLM_PLUGINS="${VLLM_PLUGINS-mediagate}"
# GiB for KV blocks; CPU threads are left to the scheduler, since others run on the same cores.
export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
export VLLM_CPU_OMP_THREADS_BIND="${VLLM_CPU_OMP_THREADS_BIND:-nobind}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export VLLM_HOST_IP="${VLLM_HOST_IP:-127.0.0.1}"
export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}" VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
# Seeds the chain of block hashes, so that a router can compute them too.
export PYTHONHASHSEED="${PYTHONHASHSEED:-0}"

# The CPU's attention kernel wants blocks of a multiple of 32. Flags given later win.
exec "$python" -m vllm.entrypoints.cli.main serve "$model" \
    --served-model-name "$name" \
    --host 127.0.0.1 --port "$port" \
    --dtype float32 --enforce-eager \
    --max-model-len 8192 --max-num-seqs 8 --max-num-batched-tokens 8192 \
    --block-size 32 --enable-prefix-caching --prefix-caching-hash-algo sha256_cbor \
    --limit-mm-per-prompt '{"image": 4, "video": 0}' \
    "${kv_events[@]}" "$@"
