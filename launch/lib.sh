# shellcheck shell=bash
# What the scripts in this folder share. Sourced, after `set -euo pipefail`.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
logs="$root/.cache/logs"
mkdir -p "$logs"

# rustup and `pip install --user` put programs here, and not every shell has it on its PATH.
[ -d "$HOME/.cargo/bin" ] && case ":$PATH:" in *":$HOME/.cargo/bin:"*) ;; *) PATH="$PATH:$HOME/.cargo/bin" ;; esac

say() { printf '[%3d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# The process ids of all children of $1, and theirs.
descendants() {
    local children child
    read -ra children -d '' < <(cat "/proc/$1"/task/*/children 2>/dev/null) || true
    for child in "${children[@]}"; do
        echo "$child"
        descendants "$child"
    done
}

# stop_tree PID [SECONDS]: asks PID to end, gives it and its descendants SECONDS to do so, kills those that are left.
stop_tree() {
    local pids tries pid alive
    pids="$1 $(descendants "$1")"
    kill -TERM "$1" 2>/dev/null || true
    for ((tries = ${2:-20} * 10; tries > 0; tries--)); do
        alive=""
        for pid in $pids; do is_alive "$pid" && alive="$alive $pid"; done
        # With its 0: in a trap, a bare `return` returns the status from before the trap.
        [ -z "$alive" ] && return 0
        sleep 0.1
    done
    # shellcheck disable=SC2086  # a list of numbers
    kill -KILL $alive 2>/dev/null || true
}

# Neither gone nor a zombie that waits for its parent.
is_alive() { [ -r "/proc/$1/stat" ] && ! grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2>/dev/null; }

# What to stop when this script ends, however it ends: process ids, the youngest first.
running=""
stop_running() {
    local pid
    for pid in $running; do stop_tree "$pid" || true; done
    running=""
}
trap stop_running EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# quietly NAME LABEL COMMAND...: runs it with its output in .cache/logs/NAME.log, and says each 15 s what it is at.
# If it fails, shows the end of the log and returns its exit code.
quietly() {
    local log="$logs/$1.log" label="$2" pid code=0 begun=$SECONDS last
    shift 2
    "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    running="$pid $running"
    while is_alive "$pid"; do
        # `wait` is interrupted by a signal at once, `sleep` in the foreground is not.
        sleep 1 &
        wait $! || true
        if (((SECONDS - begun) % 15 == 14)); then
            last="$(tail -c 400 "$log" | tr '\r' '\n' | grep -v '^[[:space:]]*$' | tail -n 1 | cut -c1-90 || true)"
            say "  $label: $((SECONDS - begun + 1)) s  ${last:+| $last}"
        fi
    done
    wait "$pid" || code=$?
    running="${running#"$pid "}"
    if [ "$code" -ne 0 ]; then
        echo "---- $label failed with exit code $code; the end of ${log#"$root/"}:"
        tail -n "${TAIL_LINES:-60}" "$log"
        echo "----"
    fi
    return "$code"
}

# install_system_packages [PROGRAM...]: installs what a build needs from the system, and the PROGRAMs (each in a package of
# its own name), where they are missing. Without root: says what to run, and ends the script.
# shellcheck disable=SC2120
install_system_packages() {
    local missing="" pkg
    command -v g++ >/dev/null || missing="$missing g++"
    command -v make >/dev/null || missing="$missing make"
    command -v cmake >/dev/null || missing="$missing cmake"
    command -v nasm >/dev/null || missing="$missing nasm"
    command -v curl >/dev/null || missing="$missing curl"
    command -v git >/dev/null || missing="$missing git"
    for pkg in "$@"; do command -v "$pkg" >/dev/null || missing="$missing $pkg"; done
    [ -n "$(find /lib* /usr/lib* -maxdepth 2 -name 'libnuma.so.1' 2>/dev/null)" ] || missing="$missing libnuma1"
    has_libclang || missing="$missing libclang-dev"
    if ! command -v python3 >/dev/null || ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
        missing="$missing python3 python3-venv"
    fi
    command -v cargo >/dev/null || die "cargo is not on the PATH: install Rust (1.88 or newer) with rustup first"
    [ -z "$missing" ] && return

    local line="apt-get update && apt-get install --yes --no-install-recommends$missing"
    command -v apt-get >/dev/null || die "these are missing, and apt-get is not there to install them:$missing"
    if [ "$(id -u)" -eq 0 ]; then
        say "installing$missing"
        DEBIAN_FRONTEND=noninteractive quietly apt "apt-get" bash -c "$line"
    elif sudo -n true 2>/dev/null; then
        say "installing$missing (sudo)"
        quietly apt "apt-get" sudo -n env DEBIAN_FRONTEND=noninteractive bash -c "$line"
    else
        die "these are missing:$missing
Install them with:
    sudo sh -c '$line'"
    fi
}

# bindgen (of nixl-sys) loads it; Debian's libclang-dev also brings the headers that it needs. libclang-cpp.so is another library.
has_libclang() {
    local folder file
    [ -n "${LIBCLANG_PATH:-}" ] && return
    for folder in /usr/lib/llvm-*/lib /usr/lib/*-linux-gnu /usr/lib64 /usr/lib; do
        for file in "$folder"/libclang.so* "$folder"/libclang-[0-9]*.so*; do
            [ -e "$file" ] && return
        done
    done
    return 1
}

# free_port WANTED: WANTED if nobody listens there, else a port that is free now, and none that the kernel gives to others until it
# is used.
free_port() {
    "$root/.venv/bin/python" - "$1" <<'PY'
import random, socket, sys

def free(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return None
        return s.getsockname()[1]

print(next(filter(free, [int(sys.argv[1]), *random.sample(range(20_000, 32_000), 1_000)])))
PY
}

# wait_for URL PID SECONDS LABEL: until URL answers 200. Fails if PID ends before.
wait_for() {
    local begun=$SECONDS
    while ! curl --silent --fail --max-time 2 --output /dev/null "$1"; do
        is_alive "$2" || return 1
        ((SECONDS - begun < $3)) || return 1
        sleep 1 &
        wait $! || true
        ((SECONDS == begun || (SECONDS - begun) % 15)) || say "  waiting for $4: $((SECONDS - begun)) s"
    done
}

# own_environment NAME FOLDER LABEL: FOLDER/venv with what python/requirements/NAME.txt locks, for programs whose versions are not
# those of the project's environment, which must be there. Does nothing if it is there already.
own_environment() {
    local lock="$root/python/requirements/$1.txt" venv="$2/venv"
    cmp --silent "$lock" "$venv/lock.txt" && return
    say "installing $3 (about 300 MB)"
    mkdir -p "$2"
    quietly "$1-venv" "uv venv" "$root/.venv/bin/uv" venv --clear --python "$root/.venv/bin/python" "$venv"
    VIRTUAL_ENV="$venv" quietly "$1-install" "$3" "$root/.venv/bin/uv" pip sync --require-hashes "$lock"
    cp "$lock" "$venv/lock.txt"
}

# The folder of libnixl_capi.so in the project's environment.
nixl_lib_dir() {
    local dir
    for dir in "$root"/.venv/lib/python3*/site-packages/.nixl_cu12.mesonpy.libs; do
        [ -e "$dir/libnixl_capi.so" ] && echo "$dir" && return
    done
    return 1
}
