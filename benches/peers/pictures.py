"""Photographs that differ in every pixel, as files and from a server of their own."""

import io
import pathlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from PIL import Image, ImageEnhance

PHOTOGRAPH = pathlib.Path(__file__).resolve().parents[2] / "tests/data/paris.jpg"
SIZES = {"480p": (640, 480), "1080p": (1920, 1080)}


def make(size: str, kind: str, count: int) -> list[bytes]:
    """`count` files of one size, "jpeg" or "png"."""
    source = Image.open(PHOTOGRAPH).convert("RGB").resize(SIZES[size], Image.Resampling.BICUBIC)
    files = []
    for index in range(count):
        file = io.BytesIO()
        picture = ImageEnhance.Brightness(source).enhance(0.6 + 0.8 * index / max(count - 1, 1))
        picture.save(file, kind, **({"quality": 85} if kind == "jpeg" else {"compress_level": 1}))
        files.append(file.getvalue())
    return files


class Server:
    """Serves what is put into it, under its name, whatever follows a question mark."""

    def __init__(self) -> None:
        files: dict[str, tuple[str, bytes]] = {}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                media_type, content = files[self.path.split("?")[0]]
                first, last, status = 0, len(content) - 1, 200
                if (asked := self.headers.get("Range")) and asked.startswith("bytes="):
                    start, _, end = asked.removeprefix("bytes=").partition("-")
                    first, last, status = int(start or 0), min(int(end or last), last), 206
                self.send_response(status)
                self.send_header("Content-Type", media_type)
                self.send_header("Content-Length", str(last - first + 1))
                if status == 206:
                    self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
                self.end_headers()
                self.wfile.write(content[first : last + 1])

            def log_message(self, *_: object) -> None:
                pass

        self.files = files
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def put(self, name: str, media_type: str, content: bytes) -> str:
        """Its URL."""
        self.files[f"/{name}"] = (media_type, content)
        return f"http://127.0.0.1:{self.port}/{name}"
