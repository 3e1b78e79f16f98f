"""The gateway's question on attach: how long does one picture take to get here, by a push and inside a request?

The call brings what a request would bring in place of an image, a reference or a data: URI of binary PPM, and this
process takes the pixels as it would then. The gateway times both, and so compares what it is going to do.
"""

import asyncio
import base64
import binascii
import json
import re

import numpy as np
from blake3 import blake3

from .content import content_hash
from .door import PROBE, Answer
from .errors import Refused
from .landing import Landing
from .references import SCHEME

INLINE = "data:image/x-portable-pixmap;base64,"
_PPM = re.compile(rb"P6\n([1-9][0-9]{0,4}) ([1-9][0-9]{0,4})\n255\n")


async def answer(landing: Landing, body: bytes, mac: str, *, is_local: bool) -> Answer:
    try:
        fields = json.loads(body)
        worker, grant, url = fields["worker"], fields["grant"], fields["url"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise Refused("bad", "the body is not a JSON object with worker, grant and url") from None
    if not isinstance(worker, str) or type(grant) is not int:
        raise Refused("gone", "unknown incarnation or grant")
    digest = blake3(body).hexdigest()
    asked = json.dumps({"worker": worker, "grant": grant, "digest": digest})
    await landing.call(PROBE, asked, mac, is_local=is_local)
    if isinstance(url, str) and url.startswith(SCHEME):
        seen = (await landing.take(url)).content_hash
    elif isinstance(url, str) and url.startswith(INLINE):
        seen = await asyncio.to_thread(_hash_of_inline, url)
    else:
        raise Refused("bad", "the url is neither a reference nor inline pixels")
    return Answer(json.dumps({"content_hash": seen}))


def _hash_of_inline(url: str) -> str:
    try:
        file = base64.b64decode(url[len(INLINE) :], validate=True)
    except (binascii.Error, ValueError):
        raise Refused("bad", "the pixels are not base64") from None
    head = _PPM.match(file)
    if head is None or len(file) - head.end() != (length := int(head[1]) * int(head[2]) * 3):
        raise Refused("bad", "the pixels are not a binary PPM")
    pixels = np.frombuffer(file, np.uint8, count=length, offset=head.end())
    return content_hash(pixels, height=int(head[2]), width=int(head[1]))
