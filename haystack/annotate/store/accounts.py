"""Who may annotate: names, roles, and the tokens that prove them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from haystack.annotate.store.database import Database
from haystack.annotate.store.schema import annotators
from haystack.errors import InputError
from haystack.times import moment_of, timestamp, utc_now

# These follow the imports above, which explain a missing SQLAlchemy.
from sqlalchemy import Row, func, or_, select, update  # isort: skip

Role = Literal["annotator", "lead"]
"""A lead also names predicates, chooses clusters and settles disagreements."""

_TOKEN_BYTES = 32
_LONGEST_NAME = 100


class TokenError(InputError):
    """A token that nobody has."""


class EndedTokenError(TokenError):
    """A token that somebody had; it has expired or was revoked."""


@dataclass(frozen=True)
class Account:
    """Somebody who may annotate.

    Args:
        name: what the answers are saved under.
        role: what they may do.
        created_at: when the present token was made.
        expires_at: from when on the token is refused; None for never.
        revoked_at: when it was revoked, if it was.
    """

    name: str
    role: Role
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def state(self, now: datetime) -> Literal["valid", "expired", "revoked"]:
        """What the token is worth at a time."""
        if self.revoked_at is not None:
            return "revoked"
        return "valid" if self.expires_at is None or now < self.expires_at else "expired"


class Accounts:
    """The accounts of one campaign.

    A token is 256 random bits, so nobody guesses one and a plain SHA-256 hides it: the slow hashes
    that passwords need would protect nothing here, and cost every request. Only hashes are stored;
    a token that was lost is renewed.

    Args:
        database: the campaign's database; the caller closes it.
        clock: the time now; tokens expire by it.
    """

    def __init__(self, database: Database, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock

    def add(self, name: str, role: Role = "annotator", lifetime: timedelta | None = None) -> str:
        """Make an account.

        Args:
            name: not the name of another account.
            role: what they may do.
            lifetime: how long the token works; None for ever.

        Returns:
            The token. It cannot be had again.

        Raises:
            InputError: the name cannot be one, or there is such an account.
        """
        _check_name(name)
        token, content = self._fresh(lifetime)
        with self._database.write(exclusive=True) as connection:
            taken = select(annotators.c.name).where(annotators.c.name == name)
            if connection.execute(taken).first() is not None:
                raise InputError(
                    f"there is an account {name!r} already; renew it for a new token, or choose "
                    "another name"
                )
            connection.execute(annotators.insert().values(name=name, role=role, **content))
        return token

    def renew(self, name: str, lifetime: timedelta | None = None) -> str:
        """Give an account a new token, also after it was revoked; the old one ends.

        Args:
            name: whose.
            lifetime: how long the new token works; None for ever.

        Returns:
            The token. It cannot be had again.

        Raises:
            InputError: there is no such account.
        """
        token, content = self._fresh(lifetime)
        self._change(name, **content)
        return token

    def revoke(self, name: str) -> None:
        """Refuse the token of an account from now on; its answers stay.

        Raises:
            InputError: there is no such account.
        """
        self._change(name, revoked_at=timestamp(self._clock()))

    def all(self) -> tuple[Account, ...]:
        """Every account, by name."""
        with self._database.read() as connection:
            rows = connection.execute(select(annotators).order_by(annotators.c.name)).all()
        return tuple(sorted(map(_account, rows), key=lambda account: account.name))

    def any_valid(self) -> bool:
        """Whether anybody could log in now."""
        query = select(func.count()).where(
            annotators.c.revoked_at.is_(None),
            # ISO 8601 in one time zone: their order as text is that of the times.
            or_(
                annotators.c.expires_at.is_(None),
                annotators.c.expires_at > timestamp(self._clock()),
            ),
        )
        with self._database.read() as connection:
            return connection.execute(query).scalar_one() > 0

    def verify(self, token: str) -> Account:
        """Whose token it is.

        Raises:
            TokenError: nobody's.
            EndedTokenError: it has expired or was revoked.
        """
        digest = digest_of(token)
        with self._database.read() as connection:
            row = connection.execute(
                select(annotators).where(annotators.c.token_hash == digest)
            ).one_or_none()
        # How long the index takes tells at most something of a hash, which leads to no token.
        if row is None or not hmac.compare_digest(row.token_hash, digest):
            raise TokenError("this token is not known here; ask your lead for a new link")
        account = _account(row)
        state = account.state(self._clock())
        if state != "valid":
            said = "has expired" if state == "expired" else "was revoked"
            raise EndedTokenError(
                f"the token of {account.name!r} {said}; ask your lead for a new one"
            )
        return account

    def _fresh(self, lifetime: timedelta | None) -> tuple[str, dict[str, str | None]]:
        if lifetime is not None and lifetime <= timedelta(0):
            raise InputError(f"expected a token to work for some time, got {lifetime}")
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        now = self._clock()
        try:
            expires_at = None if lifetime is None else timestamp(now + lifetime)
        except OverflowError:
            raise InputError(f"{lifetime} from now is beyond the calendar") from None
        return token, {
            "token_hash": digest_of(token),
            "created_at": timestamp(now),
            "expires_at": expires_at,
            "revoked_at": None,
        }

    def _change(self, name: str, **content: str | None) -> None:
        statement = update(annotators).where(annotators.c.name == name).values(**content)
        if "\0" not in name:  # PostgreSQL refuses to look for it
            with self._database.write() as connection:
                if connection.execute(statement).rowcount == 1:
                    return
        known = ", ".join(account.name for account in self.all()[:10]) or "none"
        raise InputError(f"there is no account {name[:40]!r}; there are: {known}")


def digest_of(token: str) -> str:
    """What is stored of a token: its SHA-256, hexadecimal."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _check_name(name: str) -> None:
    if not 0 < len(name) <= _LONGEST_NAME or name != name.strip() or not name.isprintable():
        raise InputError(
            f"expected a name of 1 to {_LONGEST_NAME} printable characters without spaces around "
            f"it, got {name[:40]!r}"
        )


def _account(row: Row[Any]) -> Account:
    def moment(text: str | None) -> datetime | None:
        return None if text is None else moment_of(text)

    return Account(
        name=row.name,
        role=row.role,
        created_at=moment_of(row.created_at),
        expires_at=moment(row.expires_at),
        revoked_at=moment(row.revoked_at),
    )
