"""Command line of the stand-in worker."""

import argparse
import json
import logging
from dataclasses import replace

import uvicorn

from ..settings import Settings
from .app import Options, build


def main() -> None:
    defaults = Settings.from_environment()
    parser = argparse.ArgumentParser(prog="python -m mediagate_vllm.standin", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:8000", metavar="ADDR", help="HOST:PORT (port 0: any free one)")
    parser.add_argument("--model", default="standin", metavar="NAME", help="the model it claims to serve")
    parser.add_argument("--attach-key-file", default=defaults.attach_key_file, metavar="F", help="shared with gateways")
    parser.add_argument("--no-nixl", action="store_true", help="be a worker without the plugin")
    parser.add_argument("--allow-http", action="store_true", help="fetch http URLs instead of refusing them")
    parser.add_argument("--cache-items", type=int, default=1 << 20, metavar="N", help="uuids remembered at most")
    parser.add_argument("--cache-bytes", type=int, default=4 << 30, metavar="N", help="bytes of RGB remembered at most")
    parser.add_argument(
        "--image-processor", type=json.loads, metavar="JSON", help="the image processor it claims to run"
    )
    parser.add_argument("--keeps-responses", action="store_true", help="claim to keep responses")
    parser.add_argument("--landing-bytes", type=int, default=defaults.landing_bytes, metavar="N")
    parser.add_argument("--grant-bytes", type=int, default=None, metavar="N", help="default: a quarter of the landing")
    parser.add_argument("--lease-seconds", type=float, default=defaults.lease_seconds, metavar="S")
    parser.add_argument("--grace-seconds", type=float, default=defaults.grace_seconds, metavar="S")
    parser.add_argument("--log-level", default="info")
    args = parser.parse_args()
    settings = replace(
        defaults,
        attach_key_file=args.attach_key_file,
        landing_bytes=args.landing_bytes,
        grant_bytes=args.grant_bytes or max(args.landing_bytes // 4, 1 << 20),
        lease_seconds=args.lease_seconds,
        grace_seconds=args.grace_seconds,
    )
    options = Options(
        args.model,
        not args.no_nixl,
        args.allow_http,
        args.cache_items,
        args.cache_bytes,
        args.image_processor,
        args.keeps_responses,
    )
    host, _, port = args.listen.rpartition(":")
    logging.basicConfig(level=args.log_level.upper(), format="%(levelname)s %(message)s")
    uvicorn.run(
        build(options, settings), host=host.strip("[]"), port=int(port), log_level=args.log_level, access_log=False
    )


if __name__ == "__main__":
    main()
