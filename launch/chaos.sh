#!/bin/bash
# Kills and stops gateways, workers and landers at random under load, and checks that no answer is wrong and nothing is lost.
#
#   launch/chaos.sh [--seconds 600] [--seed N] [--tls tcp,self]
#
# Without --tls UCX takes its fastest lane. Logs of all processes: .cache/logs/processes-chaos-*.log
set -euo pipefail
# shellcheck source=launch/lib.sh
. "$(dirname "$0")/lib.sh"

install_system_packages
cd "$root"
quietly build "cargo build" cargo build --release --locked
"$root/launch/setup-python.sh"
exec env PYTHONPATH="$root/python:$root/tests/processes" "$root/.venv/bin/python" "$root/tests/processes/chaos.py" "$@"
