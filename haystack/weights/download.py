"""Downloads that go on where they were cut off, and never leave a wrong file under a right name."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import shutil
import socket
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from urllib.parse import urlsplit

from haystack import __version__, files
from haystack.errors import HaystackError, InputError
from haystack.weights.catalogue import Weights, known
from haystack.weights.store import (
    FOLDER_VARIABLE,
    find,
    folder,
    locate,
    record_of,
    recorded_checksum,
    verify,
)

MIRROR_VARIABLE = "HAYSTACK_WEIGHTS_MIRROR"
"""Environment variable: an address under which the files lie by their names."""

Progress = Callable[[int, int | None], None]
"""Told how many bytes are there, and of how many, None where the server does not say."""

_TIMEOUT = 30.0
_RETRIES = 4
_PAUSE = 1.0
_BLOCK = 1 << 20
_TRY_AGAIN_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})


class _CutError(Exception):
    """The transfer ended early; what came is kept, and the next attempt goes on from there."""


@dataclass(frozen=True)
class _State:
    """What is known of the file that a partial download is a part of.

    Args:
        url: where it came from.
        validator: the server's mark of this very content, for ``If-Range``; "" = none.
        total: its size in bytes, None if unknown.
    """

    url: str
    validator: str = ""
    total: int | None = None


def pull(name: str, progress: Progress = lambda done, total: None) -> Path:
    """The weights of that name, downloaded unless they are here, and verified.

    Raises:
        InputError: unknown name, a mirror that is no address, or a folder that cannot be written.
        HaystackError: no connection, no such file, no space, or not the weights; what was
            received of the right file is kept, and the next call goes on there.
        MissingDependencyError: they come with a package that is not installed.
    """
    weights = known(name)
    if weights.package or locate(weights) is not None:
        return find(name)
    recorded_checksum(weights)  # a record that says nothing is found before gigabytes came
    target = folder() / weights.file
    fetch(_address(weights), target, progress, check=lambda part: _check(weights, part))
    verify(weights, target)
    return target


def fetch(url: str, target: Path, progress: Progress, check: Callable[[Path], None]) -> None:
    """Download ``url`` to ``target``, going on with what an earlier call received.

    Args:
        url: http or https.
        target: final name; until ``check`` passed the content lies in ``<target>.part``.
        progress: called now and then.
        check: raises where the whole file is not what it should be; it is then removed.
    """
    part = target.with_name(f"{target.name}.part")
    note = target.with_name(f"{target.name}.part.json")
    with _exclusive(part) as stream:
        _receive_all(url, stream, note, progress)
        try:
            check(part)
        except HaystackError:
            part.unlink()
            note.unlink(missing_ok=True)
            raise
        files.publish(part, target)
        note.unlink(missing_ok=True)


def _receive_all(url: str, stream: FileIO, note: Path, progress: Progress) -> None:
    failures = 0
    while True:
        before = stream.tell()
        try:
            _receive(url, stream, note, progress)
            return
        except _CutError as cut:
            reason = str(cut)
        failures = 1 if stream.tell() > before else failures + 1
        if failures == _RETRIES:
            raise HaystackError(
                f"the download of {url} ended after {stream.tell()} bytes ({reason}); they are "
                "kept: run the same command again to go on"
            )
        time.sleep(_PAUSE * 2 ** (failures - 1))


def _receive(url: str, stream: FileIO, note: Path, progress: Progress) -> None:
    """One attempt, from where the stream ends; without ``_CutError`` the last byte is there."""
    state = _read_note(note, url)
    # Without the server's mark two parts could be of different files.
    start = _rewind(stream, keep=bool(state.validator))
    if start and start == state.total:
        return
    with _open(url, start, state, stream) as response:
        _refuse_web_pages(url, response)
        total, resumed = _total(response, start)
        if not resumed:
            _rewind(stream, keep=False)
        _need_space(note.parent, total, stream.tell())
        _write_note(note, _State(url, _validator(response), total))
        try:
            while block := response.read(_BLOCK):
                _write(stream, block)
                progress(stream.tell(), total)
        except (OSError, http.client.HTTPException) as error:
            raise _CutError(_reason(error)) from error
    if total is not None and stream.tell() < total:
        raise _CutError(f"the server closed the connection at {stream.tell()} of {total}")


def _open(url: str, start: int, state: _State, stream: FileIO) -> http.client.HTTPResponse:
    headers = {"User-Agent": f"haystack/{__version__}"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": state.validator}
    request = urllib.request.Request(url, headers=headers)
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        answer = f"the server answers {error.code} {error.reason}"
        if error.code == 416:
            _rewind(stream, keep=False)
            raise _CutError(answer) from error
        if error.code in _TRY_AGAIN_LATER:
            raise _CutError(answer) from error
        raise HaystackError(
            f"{answer} for {url}; if upstream has moved it, {_by_hand()}"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        if isinstance(getattr(error, "reason", None), socket.gaierror):
            raise HaystackError(
                f"cannot reach {urlsplit(url).hostname} ({_reason(error)}); on a machine without "
                f"network {_by_hand()}"
            ) from error
        raise _CutError(_reason(error)) from error


def _total(response: http.client.HTTPResponse, start: int) -> tuple[int | None, bool]:
    """Size of the whole file, and whether the answer goes on from ``start``."""
    if response.status == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != start:
            raise HaystackError(
                f"the server of {response.url} answers with another part than was asked for; "
                "remove the .part file and run the command again"
            )
        return None if found[2] == "*" else int(found[2]), True
    length = response.headers.get("Content-Length")
    return None if length is None else int(length), False


def _by_hand() -> str:
    return (
        f"put the file into {folder()} by hand, or give an address under which it lies in "
        f"{MIRROR_VARIABLE}"
    )


def _validator(response: http.client.HTTPResponse) -> str:
    """A strong ETag, else the date; a weak ETag does not promise equal bytes."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified", "")


def _refuse_web_pages(url: str, response: http.client.HTTPResponse) -> None:
    kind = response.headers.get_content_type()
    if kind in ("text/html", "application/xhtml+xml"):
        raise HaystackError(
            f"{url} gives a web page ({kind}) and no file; is there a proxy or a login in between? "
            f"if there is, {_by_hand()}"
        )


def _check(weights: Weights, part: Path) -> None:
    with part.open("rb") as stream:
        begin = stream.read(16)
    if begin.startswith(b"PK"):
        wrong = "" if zipfile.is_zipfile(part) else "its end is missing"
    else:  # PyTorch before 1.6 wrote bare pickles
        known_kind = begin.startswith(b"\x80") or begin[8:9] == b"{"
        wrong = "" if known_kind else f"it begins with {begin!r}"
    if wrong:
        raise HaystackError(
            f"what came from {_address(weights)} is no weight file: {wrong}; it is removed"
        )
    digest = files.sha256_file(part)
    expected, source = weights.checksum_prefix, "its name"
    if recorded := recorded_checksum(weights):
        expected, source = recorded, str(record_of(weights))
    if not digest.startswith(expected):
        raise HaystackError(
            f"what came from {_address(weights)} has the SHA-256 {digest}, expected {expected} by "
            f"{source}; it is removed"
        )


def _address(weights: Weights) -> str:
    mirror = os.environ.get(MIRROR_VARIABLE, "")
    if not mirror:
        return weights.url
    if not _is_web_address(mirror):
        raise InputError(f"{MIRROR_VARIABLE} expects an http or https address, got {mirror!r}")
    return f"{mirror.rstrip('/')}/{weights.file}"


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018  raises where it is no number
    except ValueError:
        return False
    sendable = text.isascii() and text.isprintable() and " " not in text
    return sendable and parts.scheme in ("http", "https") and bool(parts.hostname)


@contextmanager
def _exclusive(part: Path) -> Iterator[FileIO]:
    """The partial file, open at its end, for this process alone."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        stream = part.open("ab", buffering=0)
    except OSError as error:
        raise InputError(
            f"cannot write there ({error.strerror}); choose a folder of your own with "
            f"{FOLDER_VARIABLE}=FOLDER",
            path=part.parent,
        ) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Opened just before another process finished, it is by now the file itself.
            if not os.path.samestat(os.fstat(stream.fileno()), os.stat(part)):
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError) as error:
            raise HaystackError(f"another process is downloading {part}; wait for it") from error
        yield stream


def _rewind(stream: FileIO, *, keep: bool) -> int:
    """How many bytes are there, once those that cannot be kept are dropped."""
    if not keep:
        stream.truncate(0)
    return stream.seek(0, os.SEEK_END)


def _write(stream: FileIO, block: bytes) -> None:
    rest = memoryview(block)
    try:
        while rest:
            rest = rest[stream.write(rest) :]
    except OSError as error:
        raise _cannot_write(Path(str(stream.name)), error) from error


def _need_space(place: Path, total: int | None, there: int) -> None:
    free = shutil.disk_usage(place).free
    if total is not None and total - there > free:
        raise HaystackError(
            f"{(total - there) / 1e6:.0f} MB are to come and {place} has {free / 1e6:.0f} MB left: "
            f"free some, or choose another folder with {FOLDER_VARIABLE}=FOLDER"
        )


def _cannot_write(path: Path, error: OSError) -> HaystackError:
    return HaystackError(
        f"cannot write {path} ({error.strerror}); what came is kept: make room, then run the same "
        f"command again to go on, or choose another folder with {FOLDER_VARIABLE}=FOLDER"
    )


def _write_note(note: Path, state: _State) -> None:
    try:
        files.write_json(note, asdict(state))
    except OSError as error:
        raise _cannot_write(note, error) from error


def _read_note(note: Path, url: str) -> _State:
    try:
        state = _State(**json.loads(note.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return _State(url)
    return state if state.url == url else _State(url)


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", error)
    return str(getattr(cause, "strerror", None) or cause) or type(error).__name__
