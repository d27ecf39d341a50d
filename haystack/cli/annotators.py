"""The verb ``annotators``: who may annotate where people log in."""

from __future__ import annotations

import argparse
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack.cli.annotate import PORT
from haystack.cli.outcome import Outcome
from haystack.cli.stages import add_database_argument, database_of
from haystack.errors import InputError
from haystack.text import table

if TYPE_CHECKING:
    from haystack.annotate.store.accounts import Accounts

_LIFETIME = re.compile(r"(\d{1,6})([hdw])")
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def add_verbs(verbs: Any) -> None:
    """Declare the verb."""
    annotators = verbs.add_parser(
        "annotators",
        help="give people links to the annotation page, list and revoke them",
        description="Where others than this machine's user reach the annotation page (haystack "
        "annotate --host), people log in by a link. add and renew print it, once: only a hash is "
        "kept. A renewed account's old link ends; a revoked account's answers stay.",
    )
    annotators.add_argument("action", choices=("add", "list", "renew", "revoke"))
    annotators.add_argument("workspace", type=Path, help="folder of the campaign")
    annotators.add_argument("names", nargs="*", metavar="NAME", help="what answers are saved under")
    annotators.add_argument("--lead", action="store_true", help="add: may also settle what is open")
    annotators.add_argument(
        "--expires",
        default="90d",
        metavar="TIME",
        help="how long links work: 12h, 90d, 8w or never (default: 90d)",
    )
    annotators.add_argument(
        "--public-url",
        metavar="URL",
        help=f"where people open the page; default: this machine's name and port {PORT}",
    )
    add_database_argument(annotators)
    annotators.set_defaults(run=_annotators)


def _annotators(args: argparse.Namespace) -> Outcome:
    """Add, list, renew or revoke accounts."""
    from haystack.annotate.store.accounts import Accounts
    from haystack.annotate.store.database import Database

    if args.action == "list" and args.names:
        raise InputError(f"haystack annotators list takes no names, got {args.names[0]!r}")
    if args.action != "list" and not args.names:
        raise InputError(f"haystack annotators {args.action} {args.workspace} expects a name")
    if args.action != "add" and args.lead:
        raise InputError("--lead goes with add; an account's role does not change")
    lifetime = _lifetime(args.expires)
    location = database_of(args)
    if args.action != "add" and "://" not in location and not Path(location).is_file():
        raise InputError(
            f"nobody has an account yet; run: haystack annotators add {args.workspace} NAME",
            path=location,
        )
    database = Database(location)
    try:
        accounts = Accounts(database)
        if args.action == "list":
            return _list(accounts)
        _check_names(args, {account.name for account in accounts.all()})
        if args.action == "revoke":
            for name in args.names:
                accounts.revoke(name)
            return Outcome(f"revoked: {', '.join(args.names)}", {"revoked": args.names})
        return _give_links(args, accounts, lifetime)
    finally:
        database.close()


def _check_names(args: argparse.Namespace, known: set[str]) -> None:
    """All names or none: a link that was made before an error would never be shown."""
    for name in args.names:
        if args.names.count(name) > 1:
            raise InputError(f"the name {name!r} is given twice")
        if (name in known) != (args.action != "add"):
            raise InputError(
                f"there is an account {name!r} already; haystack annotators renew gives a new link"
                if name in known
                else f"there is no account {name!r}; haystack annotators list shows those there are"
            )


def _give_links(
    args: argparse.Namespace, accounts: Accounts, lifetime: timedelta | None
) -> Outcome:
    import socket

    from haystack.annotate.service.site import Site

    site = Site("0.0.0.0", args.public_url or f"http://{socket.gethostname()}:{PORT}")
    given = []
    for name in args.names:
        if args.action == "add":
            token = accounts.add(name, "lead" if args.lead else "annotator", lifetime)
        else:
            token = accounts.renew(name, lifetime)
        link = f"{site.url(PORT)}login#token={token}"
        given.append({"name": name, "token": token, "link": link})
        if not args.json:
            print(link, flush=True)  # for the shell: $(haystack annotators add work ann)
    until = "work for ever" if lifetime is None else f"work for {args.expires}"
    text = f"links for {', '.join(args.names)}, in this order; they {until} and are not shown again"
    return Outcome(text, {"annotators": given})


def _list(accounts: Accounts) -> Outcome:
    from haystack.times import utc_now

    now = utc_now()
    rows = [
        {
            "name": account.name,
            "role": account.role,
            "state": account.state(now),
            "since": account.created_at.isoformat(timespec="seconds"),
            "expires": expires and expires.isoformat(timespec="seconds"),
        }
        for account in accounts.all()
        for expires in (account.expires_at,)
    ]
    header = ("name", "role", "state", "token since", "expires")
    text = "\n".join(table(header, [tuple(row.values()) for row in rows]))
    return Outcome(text, {"annotators": rows})


def _lifetime(text: str) -> timedelta | None:
    if text == "never":
        return None
    found = _LIFETIME.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise InputError(f"expected --expires 12h, 90d, 8w or never, got {text!r}")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
