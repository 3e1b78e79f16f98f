#!/bin/bash
# Benchmarks a gateway with NVIDIA's aiperf (from PyPI), and plain vLLM beside it, with images as base64 and by URL; leaves
# a report.
#
#   launch/aiperf.sh                        starts a stand-in worker and a gateway with frontend decoding
#   launch/aiperf.sh --vllm                 the same with a real vLLM on the CPU and a tiny model
#   launch/aiperf.sh --gateway URL --plain URL --model NAME --tokenizer DIR    what runs already; URL mode needs
#                                           --image-urls FILE (a URL a line), which both can reach
#   ... --requests N --concurrency C        per mode and server (default: 40 and 4)
#
# The report is .cache/aiperf/REPORT.md; aiperf's own files are beside it. aiperf takes a core for itself and 15 seconds to
# start: on a small machine believe the comparison, not the numbers.
set -euo pipefail
# shellcheck source=launch/lib.sh
. "$(dirname "$0")/lib.sh"

gateway="" plain="" model="" tokenizer="" image_urls="" vllm="" requests=40 concurrency=4
while [ $# -gt 0 ]; do
    case "$1" in
    --vllm) vllm=yes && shift && continue ;;
    --gateway) gateway="${2:?}" ;;
    --plain) plain="${2:?}" ;;
    --model) model="${2:?}" ;;
    --tokenizer) tokenizer="${2:?}" ;;
    --image-urls) image_urls="${2:?}" ;;
    --requests) requests="${2:?}" ;;
    --concurrency) concurrency="${2:?}" ;;
    *) die "unknown option $1; the head of launch/aiperf.sh lists them" ;;
    esac
    shift 2
done

python="$root/.venv/bin/python"
[ -x "$python" ] || "$root/launch/setup-python.sh" ${vllm:+--vllm}
out="$root/.cache/aiperf"
rm -rf "$out/runs"
mkdir -p "$out/runs"

own_environment aiperf "$out" aiperf

if [ -z "$gateway" ]; then
    binary="$root/target/release/mediagate"
    if ! [ -x "$binary" ]; then
        say "building mediagate (the first time: ten minutes on two cores)"
        (cd "$root" && quietly build "cargo build" cargo build --release --locked)
    fi
    worker_port="$(free_port 8000)"
    if [ -n "$vllm" ]; then
        say "starting vLLM with the plugin (about two minutes; log: .cache/logs/aiperf-worker.log)"
        "$root/launch/vllm-worker.sh" --port "$worker_port" --allowed-local-media-path / >"$logs/aiperf-worker.log" 2>&1 </dev/null &
    else
        say "starting a stand-in worker (log: .cache/logs/aiperf-worker.log)"
        "$python" -m mediagate_vllm.standin --listen "127.0.0.1:$worker_port" --allow-http >"$logs/aiperf-worker.log" 2>&1 </dev/null &
    fi
    running="$! $running"
    wait_for "http://127.0.0.1:$worker_port/health" "$!" 900 "the worker" || {
        tail -n 40 "$logs/aiperf-worker.log"
        die "the worker did not start"
    }
    plain="http://127.0.0.1:$worker_port"

    say "making $requests photographs, and a server for them"
    files_port="$(free_port 8500)"
    "$python" "$root/launch/aiperf_images.py" "$root/tests/data/paris.jpg" "$out/images" "$requests"
    "$python" -m http.server --bind 127.0.0.1 --directory "$out/images" "$files_port" >/dev/null 2>&1 </dev/null &
    running="$! $running"
    image_urls="$out/urls.txt"
    for ((i = 0; i < requests; i++)); do echo "http://127.0.0.1:$files_port/$i.jpg"; done >"$image_urls"

    listen="127.0.0.1:$(free_port 8080)"
    nixl=()
    dir="$(nixl_lib_dir)" && nixl=(--nixl-lib-dir "$dir")
    say "starting the gateway on $listen (log: .cache/logs/aiperf-gateway.log)"
    "$binary" --frontend-decoding --listen "$listen" --admin-listen "127.0.0.1:$(free_port 9090)" --worker "$plain" \
        --arena-bytes 512MiB --media-allow-cidr 127.0.0.0/8 --media-allow-port "$files_port" "${nixl[@]}" \
        >"$logs/aiperf-gateway.log" 2>&1 </dev/null &
    running="$! $running"
    gateway="http://$listen"
    wait_for "$gateway/ready" "$!" 60 "the gateway" || {
        tail -n 40 "$logs/aiperf-gateway.log"
        die "the gateway did not start"
    }
fi
[ -n "$model" ] || model="$(curl --silent --fail "$gateway/v1/models" | "$python" -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])')"
# aiperf counts tokens itself. A folder works offline, a name asks the model hub.
if [ -z "$tokenizer" ]; then
    tokenizer="$out/tokenizer"
    "$out/venv/bin/python" "$root/launch/aiperf_tokenizer.py" "$tokenizer"
fi
# Its offline mode looks folders up on the hub, and fails.
unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE

# measure NAME URL MODE OPTION...
measure() {
    local name="$1" url="$2" mode="$3"
    shift 3
    say "$name, $mode: $requests requests, $concurrency at once"
    quietly "aiperf-$name-$mode" "aiperf" "$out/venv/bin/aiperf" profile --model "$model" --url "$url" --endpoint-type chat \
        --streaming --tokenizer "$tokenizer" --output-tokens-mean 16 --concurrency "$concurrency" \
        --request-count "$requests" --warmup-request-count 2 --ui simple --artifact-dir "$out/runs/$name-$mode" "$@" ||
        die "aiperf failed; its log is .cache/logs/aiperf-$name-$mode.log"
}
base64=(--image-width-mean 1280 --image-height-mean 960 --image-format jpeg --image-source noise --image-batch-size 1
    --synthetic-input-tokens-mean 64)
targets=(gateway)
[ -z "$plain" ] || targets=(plain gateway)
if [ -n "$image_urls" ]; then
    while read -r url; do printf '{"text": "What is in this picture?", "image": "%s"}\n' "$url"; done <"$image_urls" >"$out/urls.jsonl"
fi
for target in "${targets[@]}"; do
    measure "$target" "${!target}" base64 "${base64[@]}"
    [ -z "$image_urls" ] || measure "$target" "${!target}" url --input-file "$out/urls.jsonl" --custom-dataset-type single-turn
done

"$python" "$root/launch/aiperf_report.py" "$out/runs" | tee "$out/REPORT.md"
stop_running
say "report: ${out#"$root/"}/REPORT.md; nothing is left running"
