"""Where the service is reached: the address that it listens on, and the names it answers to."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from urllib.parse import urlsplit

from haystack.errors import InputError

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
"""Names of this machine that nothing outside it can reach."""

_ALL_ADDRESSES = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Site:
    """How the service is reached. Only on this machine, unless told otherwise.

    Args:
        host: the address to listen on; ``0.0.0.0`` or ``::`` for all of this machine's.
        public_url: what people open, where that is not this machine's name and port: the address
            of a proxy in front, which may speak https.

    Raises:
        InputError: no address, or a URL that cannot be one.
    """

    host: str = "127.0.0.1"
    public_url: str | None = None

    def __post_init__(self) -> None:
        if not self.host.strip():
            raise InputError(
                "expected an address to listen on, got none; 127.0.0.1 is this machine only, "
                "0.0.0.0 all of its addresses"
            )
        if self.public_url is not None:
            _check_url(self.public_url)

    @property
    def needs_login(self) -> bool:
        """Whether somebody else than this machine's user may reach it."""
        return self.host not in LOOPBACK_HOSTS or self.public_url is not None

    @property
    def is_https(self) -> bool:
        """Whether people reach it by https."""
        return self.public_url is not None and urlsplit(self.public_url).scheme == "https"

    def url(self, port: int) -> str:
        """What people open, where the service listens on ``port``."""
        if self.public_url is not None:
            return f"{self.public_url.rstrip('/')}/"
        host = socket.gethostname() if self.host in _ALL_ADDRESSES else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def knows(self, host: str) -> bool:
        """Whether a request with this Host header was meant for this service.

        A page of another site whose name was made to point here (DNS rebinding) carries its own
        name. It cannot carry an address: a browser takes as a page's name what it connected to.
        """
        name = _host_name(host)
        if name is None:
            return False
        return name in self._names or (self.host not in LOOPBACK_HOSTS and _is_address(name))

    def is_own(self, origin: str, host: str) -> bool:
        """Whether a request with these Origin and Host headers comes from the service's page."""
        if self.public_url is not None:
            public = urlsplit(self.public_url)
            own = f"{public.scheme}://{public.netloc.lower()}"
            if origin.lower() == own:
                return True
            if host.lower() == public.netloc.lower():
                return False  # by http, where people are told to come by https
        return origin == f"http://{host}"

    @cached_property
    def _names(self) -> frozenset[str]:
        names = {*LOOPBACK_HOSTS}
        if self.host not in LOOPBACK_HOSTS:
            here = socket.gethostname().lower()
            names |= {self.host.lower(), here, here.partition(".")[0]}
        if self.public_url is not None:
            names.add(urlsplit(self.public_url).hostname or "")
        return frozenset(names)


def _host_name(host: str) -> str | None:
    """The name in a Host header, without port or brackets; None if it cannot be read."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InputError(f"cannot read the public URL {url[:80]!r}: {error}") from None
    plain = f"{parts.scheme}://{parts.netloc}"
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or "@" in parts.netloc
        or url.rstrip("/").lower() != plain.lower()
    ):
        raise InputError(
            "expected a public URL such as https://annotate.example.org, without a path or a "
            f"password, got {url[:80]!r}"
        )
