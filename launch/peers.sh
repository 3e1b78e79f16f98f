#!/bin/bash
# What a request costs a gateway: mediagate beside NVIDIA Dynamo and SMG (from PyPI), on this machine, in one run.
#
#   launch/peers.sh [--requests N]      per case and gateway (default: 80)
#
# Prints tables and leaves them in .cache/peers/REPORT.md. Takes ten minutes on two cores; the first time also a vLLM on the CPU
# (2.5 GB, for the tiny model's weights) and the peers (300 MB).
set -euo pipefail
# shellcheck source=launch/lib.sh
. "$(dirname "$0")/lib.sh"

requests=80
case "${1:-}" in
--requests) requests="${2:?}" ;;
"") ;;
*) die "unknown option $1; usage: launch/peers.sh [--requests N]" ;;
esac

"$root/launch/setup-python.sh" --vllm
python="$root/.venv/bin/python"
out="$root/.cache/peers"
mkdir -p "$out"

# An environment of its own: the peers' versions are not those of vLLM.
lock="$root/python/requirements/peers.txt"
if ! [ -x "$out/venv/bin/smg" ] || ! cmp --silent "$lock" "$out/venv/lock.txt"; then
    say "installing Dynamo and SMG (about 300 MB)"
    quietly peers-venv "uv venv" "$root/.venv/bin/uv" venv --clear --python "$python" "$out/venv"
    VIRTUAL_ENV="$out/venv" quietly peers-install "the peers" "$root/.venv/bin/uv" pip sync --require-hashes "$lock"
    cp "$lock" "$out/venv/lock.txt"
fi

say "building mediagate (the first time: ten minutes on two cores)"
(cd "$root" && quietly build "cargo build" cargo build --release --locked)

say "$requests requests of each kind to each gateway, one after the other"
"$python" "$root/benches/peers/compare.py" --model "$("$python" "$root/tests/e2e/tiny_model.py")" --peers "$out/venv" \
    --logs "$logs" --requests "$requests" | tee "$out/REPORT.md"
say "report: ${out#"$root/"}/REPORT.md; nothing is left running"
