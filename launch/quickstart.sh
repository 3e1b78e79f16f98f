#!/bin/bash
# Builds mediagate, starts a worker and the gateway with frontend decoding over real NIXL, sends a photograph, shows the
# answer and where the time went, and stops everything.
#
#   launch/quickstart.sh          the worker is a stand-in: it takes pixels as vLLM does, and tells what it got
#   launch/quickstart.sh --vllm   the worker is a real vLLM on the CPU, with a tiny model of random weights
#   ... --keep                    leaves it running until Ctrl-C
set -euo pipefail
# shellcheck source=launch/lib.sh
. "$(dirname "$0")/lib.sh"

vllm=""
keep=""
for option in "$@"; do
    case "$option" in
    --vllm) vllm=--vllm ;;
    --keep) keep=yes ;;
    *) die "unknown option $option; usage: launch/quickstart.sh [--vllm] [--keep]" ;;
    esac
done

install_system_packages
cd "$root"
say "building mediagate (the first time: ten minutes on two cores)"
quietly build "cargo build" cargo build --release --locked
"$root/launch/setup-python.sh" $vllm

worker_port="$(free_port 8000)"
listen="127.0.0.1:$(free_port 8080)"
admin="127.0.0.1:$(free_port 9090)"

if [ -n "$vllm" ]; then
    say "starting vLLM with the plugin on port $worker_port (about two minutes; log: .cache/logs/worker.log)"
    "$root/launch/vllm-worker.sh" --port "$worker_port" >"$logs/worker.log" 2>&1 </dev/null &
else
    say "starting the stand-in worker on port $worker_port (log: .cache/logs/worker.log)"
    "$root/.venv/bin/python" -m mediagate_vllm.standin --listen "127.0.0.1:$worker_port" >"$logs/worker.log" 2>&1 </dev/null &
fi
worker=$!
running="$worker $running"
wait_for "http://127.0.0.1:$worker_port/health" "$worker" 1800 "the worker" || {
    tail -n 40 "$logs/worker.log"
    die "the worker did not start"
}

say "starting the gateway on $listen, metrics on $admin (log: .cache/logs/gateway.log)"
"$root/target/release/mediagate" --frontend-decoding --listen "$listen" --admin-listen "$admin" \
    --arena-bytes 512MiB --worker "http://127.0.0.1:$worker_port" --nixl-lib-dir "$(nixl_lib_dir)" >"$logs/gateway.log" 2>&1 </dev/null &
gateway=$!
running="$gateway $running"
wait_for "http://$listen/ready" "$gateway" 180 "the gateway" || {
    tail -n 40 "$logs/gateway.log"
    die "the gateway did not start"
}
# Ready means that a worker is healthy. That it granted landing memory too is seen a moment later.
attached=""
for _ in $(seq 1200); do
    if curl --silent --fail "http://$admin/metrics" | grep -q '^mediagate_worker_attached{.*} 1$'; then
        attached=yes
        break
    fi
    sleep 0.1
done
if [ -z "$attached" ]; then
    # It would work, with the pixels inside the request; but that is not what this script is to show.
    tail -n 20 "$logs/worker.log" "$logs/gateway.log"
    die "the worker granted no landing memory, so NIXL does not work here: the logs above say why"
fi

say "sending tests/data/paris.jpg, twice: the second time everything is known"
[ -z "$vllm" ] || say "the model's weights are random, and so are its words: equal words mean equal pixels"
for time in first second; do
    printf '\n== %s ==\n' "$time"
    "$root/.venv/bin/python" "$root/launch/ask.py" --url "http://$listen" "$root/tests/data/paris.jpg"
done
echo

if [ -n "$keep" ]; then
    say "running until Ctrl-C; try: .venv/bin/python launch/ask.py --url http://$listen PICTURE"
    wait "$gateway" || true
fi
stop_running
say "stopped; nothing is left running"
