"""A server of weight files that can be made to misbehave."""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler


def weight_file(seed: int = 0, size: int = 300_000) -> bytes:
    """Bytes that pass for a PyTorch file: a zip archive."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        entry = zipfile.ZipInfo("archive/data.pkl")  # whose date is fixed
        archive.writestr(entry, bytes((seed + i * i) % 251 for i in range(size)))
    return stream.getvalue()


@dataclass
class Server:
    """An HTTP server with the manners, good and bad, of those that weights come from.

    Args:
        content: of every file.
        etag, modified: its validators; "" = not sent.
        ranges: whether a part can be asked for.
        cuts: after so many bytes of the body each of the next answers ends.
        status: of the next answers, where they are errors.
        kind: the content type.
        length: whether the length is said.
        shift: bytes by which an answered part lies wrong.
    """

    content: bytes
    etag: str = '"one"'
    modified: str = ""
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    kind: str = "application/octet-stream"
    length: bool = True
    shift: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)
    address: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range", "")
        self.asked.append((request.path, wanted))
        if self.status:
            request.send_error(self.status.pop(0))
            return
        total, start = len(self.content), 0
        unchanged = request.headers.get("If-Range", "") in (self.etag, self.modified)
        if wanted and self.ranges and unchanged:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])  # type: ignore[index]
            if start >= total:
                request.send_error(416)
                return
            request.send_response(206)
            begin = start + self.shift
            request.send_header("Content-Range", f"bytes {begin}-{total - 1}/{total}")
        else:
            request.send_response(200)
        body = self.content[start:]
        for header, value in (
            ("Content-Type", self.kind),
            ("ETag", self.etag),
            ("Last-Modified", self.modified),
            ("Content-Length", str(len(body)) if self.length else ""),
        ):
            if value:
                request.send_header(header, value)
        request.end_headers()
        request.wfile.write(body[: self.cuts.pop(0)] if self.cuts else body)
