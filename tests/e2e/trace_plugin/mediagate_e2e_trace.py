"""Test only: a vLLM plugin that writes down each image a vLLM process opens and each URL it fetches.

With decoded pixels arriving from the gateway, a worker has no reason for either; the tests prove it by this file's
silence, and prove the file by sending the same image to the worker directly. Active where MEDIAGATE_E2E_TRACE names a
file; vLLM loads it into all of its processes, and each appends one line of JSON a call.
"""

import functools
import inspect
import json
import os


def install() -> None:
    path = os.environ.get("MEDIAGATE_E2E_TRACE")
    if not path:
        return
    from PIL import Image
    from vllm.connections import HTTPConnection
    from vllm.multimodal.media.image import ImageMediaIO

    def note(what: str) -> None:
        line = json.dumps({"what": what, "pid": os.getpid()}) + "\n"
        # One write of a short line to a file opened for appending: lines of several processes do not mix.
        with open(path, "a") as file:
            file.write(line)

    def watch(owner, name: str) -> None:
        what = f"{owner.__name__}.{name}"
        original = inspect.getattr_static(owner, name)
        function = original.__func__ if isinstance(original, classmethod | staticmethod) else original
        if getattr(function, "traced", False):
            return  # vLLM may load a plugin twice in one process

        # Noted before the call: a fetch that never ends is a fetch. For a coroutine function this runs at the call too.
        @functools.wraps(function)
        def traced(*arguments, **named):
            note(what)
            return function(*arguments, **named)

        traced.traced = True
        setattr(owner, name, type(original)(traced) if function is not original else traced)

    watch(Image, "open")
    for name in ("load_bytes", "load_base64", "load_file"):
        watch(ImageMediaIO, name)
    for name in ("get_response", "get_bytes", "download_file"):
        watch(HTTPConnection, name)
    for name in ("get_async_response", "async_get_bytes", "async_download_file"):
        watch(HTTPConnection, name)
    note("installed")
