#!/bin/bash
# Checks that take long and seldom find something: run them before a release, after launch/test.sh.
#
#   launch/test-long.sh
set -euo pipefail
# shellcheck source=launch/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root"
export CARGO_TERM_COLOR=never

install_system_packages
"$root/launch/setup-python.sh" --vllm

say "unit tests of the slim build: without routing by tokens and KV blocks (its crates are compiled once more)"
cargo test --release --locked --no-default-features --lib

say "locks of the loader under a model checker (all of mediagate is compiled once more)"
cargo test --release --locked --features shuttle --test loader_shuttle

say "decoding against Pillow, over 6,000 random images and as many variants that it does not write, whole and damaged"
MEDIAGATE_PILLOW_SEED="$RANDOM" MEDIAGATE_PILLOW_IMAGES=6000 \
    cargo test --release --locked --test decode_pillow --test decode_variants -- --nocapture

# After the tests above, which leave programs with other features behind.
cargo build --release --locked

say "fleets of two stand-in workers and two gateways, in each topology"
for topology in frontend-decoding passthrough; do
    "$root/launch/fleet.sh" --topology "$topology" --workers 2 --gateways 2 --once
done

say "gateway.sh: starts, answers, drains"
listen="127.0.0.1:$(free_port 8080)"
"$root/launch/gateway.sh" --frontend-decoding --arena-bytes 768MiB --worker http://127.0.0.1:9 \
    --listen "$listen" --admin-listen "127.0.0.1:$(free_port 9090)" &
gateway=$!
running="$gateway"
wait_for "http://$listen/health" "$gateway" 60 "the gateway"
kill -TERM "$gateway"
wait "$gateway"
running=""

say "aiperf: a few requests, to see that it runs"
"$root/launch/aiperf.sh" --requests 8 --concurrency 2

say "Dynamo and SMG beside mediagate: a few requests, to see that all of them run"
"$root/launch/peers.sh" --requests 4

say "resizing against the image processors of transformers, over 2,000 random pictures"
MEDIAGATE_RESIZE_SEED="$RANDOM" MEDIAGATE_RESIZE_IMAGES=2000 cargo test --release --locked --test resize_transformers -- --nocapture

say "who dies or stands still at which moment of a WRITE: each case, over the fastest lane and over TCP"
MEDIAGATE_ALL_FAULTS=1 PYTHONPATH="$root/python" "$root/.venv/bin/python" -m pytest tests/processes/test_faults.py

say "ten minutes of chaos over the fastest lane, and five over TCP"
"$root/launch/chaos.sh" --seconds 600
"$root/launch/chaos.sh" --seconds 300 --tls tcp,self

say "all long checks passed"
