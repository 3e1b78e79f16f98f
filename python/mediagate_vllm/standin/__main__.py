"""Command line of the stand-in worker."""

import argparse
import json
import logging
import sys
from dataclasses import replace

import uvicorn

from .. import standin
from ..settings import LEAST_LANDING_BYTES, SettingError, Settings, size
from .app import Options, build


def _bytes(text: str) -> int:
    try:
        return size(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError("must be a host and a port, such as 127.0.0.1:8000 or [::1]:8000")
    return host.strip("[]"), int(port)


def _object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"is not JSON: {e}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def _parser(defaults: Settings) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mediagate_vllm.standin",
        description=standin.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--listen", type=_address, default="127.0.0.1:8000", metavar="ADDR", help="HOST:PORT (port 0: any free one)")
    add("--model", default="standin", metavar="NAME", help="the model it claims to serve")
    add("--attach-key-file", default=defaults.attach_key_file, metavar="FILE", help="the secret shared with gateways")
    add("--no-nixl", action="store_true", help="be a worker without the plugin")
    add("--allow-http", action="store_true", help="fetch http URLs instead of refusing them")
    add("--cache-items", type=int, default=1 << 20, metavar="N", help="uuids remembered at most")
    add("--cache-bytes", type=_bytes, default=4 << 30, metavar="N", help="bytes of RGB remembered at most")
    add("--image-processor", type=_object, metavar="JSON", help="the image processor it claims to run")
    add("--keeps-responses", action="store_true", help="claim to keep responses")
    add("--landing-bytes", type=_bytes, default=defaults.landing_bytes, metavar="N", help="landing memory")
    add(
        "--grant-bytes",
        type=_bytes,
        metavar="N",
        help="most for one gateway (default: a quarter of it)",
    )
    add("--lease-seconds", type=float, default=defaults.lease_seconds, metavar="S", help="silence that loses a grant")
    add(
        "--grace-seconds",
        type=float,
        default=defaults.grace_seconds,
        metavar="S",
        help="until a lost range is granted again",
    )
    add("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    return parser


def main() -> None:
    try:
        defaults = Settings.from_environment()
    except SettingError as e:
        sys.exit(f"error: {e}")
    args = _parser(defaults).parse_args()
    settings = replace(
        defaults,
        attach_key_file=args.attach_key_file,
        landing_bytes=args.landing_bytes,
        grant_bytes=args.grant_bytes or max(args.landing_bytes // 4, LEAST_LANDING_BYTES),
        lease_seconds=args.lease_seconds,
        grace_seconds=args.grace_seconds,
    )
    options = Options(
        model=args.model,
        nixl=not args.no_nixl,
        allow_http=args.allow_http,
        cache_items=args.cache_items,
        cache_bytes=args.cache_bytes,
        image_processor=args.image_processor,
        keeps_responses=args.keeps_responses,
    )
    host, port = args.listen
    logging.basicConfig(level=args.log_level.upper(), format="%(levelname)s %(message)s")
    uvicorn.run(build(options, settings), host=host, port=port, log_level=args.log_level, access_log=False)


if __name__ == "__main__":
    main()
