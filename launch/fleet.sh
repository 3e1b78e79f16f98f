#!/bin/bash
# Starts workers and gateways on this machine, in one of the topologies, asks each gateway about a photograph, and leaves
# them running until Ctrl-C.
#
#   launch/fleet.sh [--topology frontend-decoding|passthrough] [--workers N] [--gateways M] [--vllm] [--once]
#                   [-- any flag of mediagate...]
#
#   frontend-decoding   gateways decode, and push pixels to the workers over NIXL (the default)
#   passthrough         gateways route by URL, and workers fetch
#
# Workers are stand-ins, or with --vllm real vLLM servers on the CPU (3.5 GB and two minutes each). --once stops after the
# photograph. All workers are known to all gateways: several gateways agree on where a picture goes without talking.
set -euo pipefail
# shellcheck source=launch/lib.sh
. "$(dirname "$0")/lib.sh"

topology=frontend-decoding workers=2 gateways=1 vllm="" once=""
usage() { die "$1; usage: launch/fleet.sh [--topology frontend-decoding|passthrough] [--workers N] [--gateways M] [--vllm] [--once] [-- FLAGS]"; }
while [ $# -gt 0 ]; do
    case "$1" in
    --topology) topology="${2:-}" && shift ;;
    --workers) workers="${2:-}" && shift ;;
    --gateways) gateways="${2:-}" && shift ;;
    --vllm) vllm=yes ;;
    --once) once=yes ;;
    --) shift && break ;;
    *) usage "unknown option $1" ;;
    esac
    shift
done
case "$topology" in frontend-decoding | passthrough) ;; *) usage "there is no topology '$topology'" ;; esac
[[ "$workers" =~ ^[1-9][0-9]?$ && "$gateways" =~ ^[1-9][0-9]?$ ]] || usage "--workers and --gateways are from 1 to 99"

python="$root/.venv/bin/python"
binary="$root/target/release/mediagate"
[ -x "$python" ] || "$root/launch/setup-python.sh" ${vllm:+--vllm}
if ! [ -x "$binary" ]; then
    say "building mediagate (the first time: ten minutes on two cores)"
    (cd "$root" && quietly build "cargo build" cargo build --release --locked)
fi

flags=()
worker_pids=()
for ((i = 0; i < workers; i++)); do
    port="$(free_port $((8000 + i)))"
    log="$logs/fleet-worker-$i.log"
    if [ -n "$vllm" ]; then
        "$root/launch/vllm-worker.sh" --port "$port" >"$log" 2>&1 </dev/null &
    else
        "$python" -m mediagate_vllm.standin --listen "127.0.0.1:$port" --allow-http >"$log" 2>&1 </dev/null &
    fi
    worker_pids+=($!)
    running="$! $running"
    flags+=(--worker "http://127.0.0.1:$port")
    say "worker $i: http://127.0.0.1:$port (log: ${log#"$root/"})"
    # One after another: a port is free until somebody listens there, and the weights of several need not load at once.
    wait_for "http://127.0.0.1:$port/health" "$!" 900 "worker $i" || {
        tail -n 40 "$log"
        die "worker $i did not start"
    }
done

[ "$topology" = passthrough ] || flags+=(--frontend-decoding --arena-bytes 256MiB --landing-bytes 64MiB)
dir="$(nixl_lib_dir)" && flags+=(--nixl-lib-dir "$dir")
urls=()
admins=()
gateway_pids=()
for ((i = 0; i < gateways; i++)); do
    listen="127.0.0.1:$(free_port $((8080 + i)))"
    admin="127.0.0.1:$(free_port $((9090 + i)))"
    log="$logs/fleet-gateway-$i.log"
    "$binary" --listen "$listen" --admin-listen "$admin" "${flags[@]}" "$@" >"$log" 2>&1 </dev/null &
    gateway_pids+=($!)
    running="$! $running"
    urls+=("http://$listen")
    admins+=("http://$admin")
    say "gateway $i: http://$listen, status page and metrics: http://$admin/ (log: ${log#"$root/"})"
    wait_for "http://$listen/ready" "$!" 60 "gateway $i" || {
        tail -n 40 "$log"
        die "gateway $i did not start"
    }
done

# Ready means that one worker is healthy; the others, and their landing memory, are seen a moment later.
wanted=mediagate_worker_up
[ "$topology" = passthrough ] || wanted=mediagate_worker_attached
for admin in "${admins[@]}"; do
    for ((tries = 0; ; tries++)); do
        count="$(curl --silent "$admin/metrics" | grep -c "^$wanted{.*} 1\$" || true)"
        [ "$count" -eq "$workers" ] && break
        ((tries < 300)) || die "$admin: only $count of $workers workers have $wanted; the logs say why"
        sleep 0.1
    done
done

for url in "${urls[@]}"; do
    printf '\n== %s ==\n' "$url"
    "$python" "$root/launch/ask.py" --url "$url" "$root/tests/data/paris.jpg"
done
echo

if [ -z "$once" ]; then
    say "running until Ctrl-C; a worker that dies is left alone, and taken back when it returns"
    wait -n "${gateway_pids[@]}" || true
fi
stop_running
say "stopped; nothing is left running"
