"""One large JSON object, read piece by piece: its values, and one list item by item."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from haystack.errors import InputError

_CHUNK = 2**20
_LONGEST = 2**28
_SPACE = " \t\r\n"


def stream_items(stream: TextIO, key: str) -> Iterator[tuple[str, Any]]:
    """The entries of the object in a stream, in the order of the file.

    Args:
        stream: the text.
        key: of the entry whose value is a list that is not to be held as a whole.

    Yields:
        (name, value) of each entry; for ``key``, (key, item) of each item of the list.

    Raises:
        InputError: no such object, no list under ``key``, or a value longer than is plausible.
    """
    reader = _Reader(stream)
    reader.expect("{", "an object")
    found = False
    going_on = reader.peek() != "}"
    if not going_on:
        reader.advance()
    while going_on:
        name = reader.value()
        if not isinstance(name, str) or (found and name == key):
            raise InputError(f"expected keys as text, and {key!r} once, got {name!r} as a key")
        reader.expect(":", "':' after a key")
        if name == key:
            found = True
            yield from ((key, item) for item in _list(reader, key))
        else:
            yield name, reader.value()
        going_on = reader.goes_on("}")
    if reader.peek():
        raise InputError("not valid JSON: something follows the object")
    if not found:
        raise InputError(f"expected a list under {key!r}, got no such key")


def _list(reader: _Reader, key: str) -> Iterator[Any]:
    reader.expect("[", f"a list under {key!r}")
    if reader.peek() == "]":
        reader.advance()
        return
    while True:
        yield reader.value()
        if not reader.goes_on("]"):
            return


class _Reader:
    """A stream, a stretch of it in memory, and a position in that."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._text = ""
        self._position = 0
        self._ended = False
        self._decoder = json.JSONDecoder()

    def peek(self) -> str:
        """The next character that is no space, or nothing at the end."""
        while True:
            while self._position < len(self._text):
                character = self._text[self._position]
                if character not in _SPACE:
                    return character
                self._position += 1
            if self._ended:
                return ""
            self._more()

    def advance(self) -> None:
        """Go past one character."""
        self._position += 1

    def expect(self, character: str, what: str) -> None:
        """Go past ``character``, which must come next."""
        found = self.peek()
        if found != character:
            raise InputError(f"not valid JSON: expected {what}, got {found or 'the end'!r}")
        self.advance()

    def goes_on(self, closing: str) -> bool:
        """Go past a comma (True) or the closing bracket (False)."""
        if self.peek() == ",":
            self.advance()
            return True
        self.expect(closing, f"',' or {closing!r}")
        return False

    def value(self) -> Any:
        """The next value."""
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._position)
                if end < len(self._text) or self._ended:  # a number may go on
                    self._position = end
                    return value
            except (ValueError, RecursionError) as error:
                if self._ended or isinstance(error, RecursionError):
                    raise InputError(f"not valid JSON: {error}") from error
            self._more()

    def _more(self) -> None:
        self._text = self._text[self._position :]
        self._position = 0
        if len(self._text) > _LONGEST:
            raise InputError(f"a value takes more than {_LONGEST} characters")
        # As much again as there is: a value is tried anew a few times only.
        more = self._stream.read(max(_CHUNK, len(self._text)))
        self._ended = not more
        self._text += more
