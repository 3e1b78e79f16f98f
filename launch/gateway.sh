#!/bin/bash
# Starts a gateway in the foreground, with the NIXL of the project's Python environment if that is there. Flags are those
# of mediagate; without any it decodes images and expects one worker on port 8000.
#
#   launch/gateway.sh [any flag of mediagate...]
#   launch/gateway.sh --frontend-decoding --worker http://10.0.0.1:8000 --worker http://10.0.0.2:8000
#
# SIGTERM or Ctrl-C drains it, SIGHUP reads its files again.
set -euo pipefail
# shellcheck source=launch/lib.sh
. "$(dirname "$0")/lib.sh"

[ $# -gt 0 ] || set -- --frontend-decoding --worker http://127.0.0.1:8000
binary="$root/target/release/mediagate"
if ! [ -x "$binary" ]; then
    say "building mediagate (the first time: ten minutes on two cores)" >&2
    (cd "$root" && quietly build "cargo build" cargo build --release --locked) >&2
fi
if [ -z "${MEDIAGATE_NIXL_LIB_DIR:-}" ] && dir="$(nixl_lib_dir)"; then
    export MEDIAGATE_NIXL_LIB_DIR="$dir"
fi
# What is wrong is said before anything starts, and what is odd as well.
"$binary" config check "$@" >&2
say "mediagate $*" >&2
exec "$binary" "$@"
