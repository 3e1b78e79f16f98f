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

install_system_packages
"$root/launch/setup-python.sh" --vllm
python="$root/.venv/bin/python"
out="$root/.cache/peers"
own_environment peers "$out" "Dynamo and SMG"

say "building mediagate (the first time: ten minutes on two cores)"
(cd "$root" && quietly build "cargo build" cargo build --release --locked)

say "$requests requests of each kind to each gateway, one after the other"
"$python" "$root/benches/peers/compare.py" --model "$("$python" "$root/tests/e2e/tiny_model.py")" --peers "$out/venv" \
    --logs "$logs" --requests "$requests" | tee "$out/REPORT.md"
say "report: ${out#"$root/"}/REPORT.md; nothing is left running"
