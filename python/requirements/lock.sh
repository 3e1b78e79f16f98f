#!/bin/bash
# Writes the lock files again from the .in files. `lock.sh --upgrade` takes newer versions.
# tools.txt (Python 3.10 or newer) has vllm.txt's versions wherever those exist for its Python.
set -euo pipefail
cd "$(dirname "$0")"
uv="${UV:-../../.venv/bin/uv}"
export UV_CUSTOM_COMPILE_COMMAND="python/requirements/lock.sh"

# lock OUT [OPTION...]: resolves, and leaves out what an override excludes from every platform.
lock() {
    local out="$1"
    shift
    "$uv" pip compile --quiet --universal --generate-hashes --no-annotate "$@" --output-file "$out"
    awk '/^[^ #]/ { skip = /sys_platform == .never./ } !skip' "$out" >"$out.tmp"
    mv "$out.tmp" "$out"
}

lock uv.txt uv.in --python-version 3.8 "$@"
lock aiperf.txt aiperf.in --python-version 3.11 "$@"
lock peers.txt peers.in --python-version 3.11 --override overrides-peers.txt "$@"
lock vllm.txt vllm.in --python-version 3.11 --override overrides.txt "$@"

constraints="$(mktemp)"
trap 'rm -f "$constraints"' EXIT
# Python 3.10 is not bound by vLLM's versions, and gets the newest that still support it.
awk '/^[^ #]/ {
    sub(/ *\\$/, "")
    if (sub(/ ; /, " ; python_version >= \"3.11\" and (")) print $0 ")"
    else print $0 " ; python_version >= \"3.11\""
}' vllm.txt >"$constraints"
lock tools.txt tools.in --python-version 3.10 --override overrides-tools.txt --constraint "$constraints" "$@"
