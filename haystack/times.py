"""Times as they are kept: ISO 8601, UTC, microseconds, so that text order is time order."""

from __future__ import annotations

from datetime import datetime, timezone


def utc_now() -> datetime:
    """The time now, in UTC."""
    return datetime.now(timezone.utc)


def timestamp(moment: datetime) -> str:
    """A moment as text, such as ``2026-01-31T12:00:00.000000Z``."""
    moment = moment.astimezone(timezone.utc)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def moment_of(text: str) -> datetime:
    """The moment that :func:`timestamp` wrote.

    Raises:
        ValueError: the text is none.
    """
    return datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 reads no Z
