"""The errors that Haystack raises, and the exit code that each one means on the command line."""

from __future__ import annotations

from pathlib import Path


class HaystackError(Exception):
    """Root of every error that Haystack raises on purpose; exit code 1."""

    exit_code = 1


class InputError(HaystackError, ValueError):
    """Bad input or bad usage: what was expected, what came, where, what to do; exit code 2.

    Args:
        message: one sentence; what was expected, what came, what to do about it.
        path: the file in which it was found, if any.
        record: the place inside that file (an image id, a row, a key), if any.
    """

    exit_code = 2

    def __init__(
        self, message: str, *, path: str | Path | None = None, record: object | None = None
    ) -> None:
        self.message = message
        self.path = path
        self.record = record
        where = ", ".join(str(part) for part in (path, record) if part is not None)
        super().__init__(f"{where}: {message}" if where else message)


class ConflictError(InputError):
    """What was to be changed has been changed by someone else meanwhile; nothing was written."""


class MissingDependencyError(HaystackError):
    """What was asked for needs a package that is not installed; exit code 2.

    The message names the command that installs it.

    Args:
        package: its name.
        purpose: what needs it.
        extra: of Haystack's own extras, the one that brings it.
        then: a further command, where no extra can bring the package itself.
    """

    exit_code = 2

    def __init__(self, package: str, *, purpose: str, extra: str, then: str = "") -> None:
        also = f", then: {then}" if then else ""
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed; "
            f"run: pip install 'haystack-psg[{extra}]'{also}"
        )
