"""The verb ``weights``: what is known by name, where it lies, and fetching it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from haystack.cli.outcome import Outcome
from haystack.errors import InputError
from haystack.text import table

if TYPE_CHECKING:
    from haystack.weights.download import Progress


def add_verbs(verbs: Any) -> None:
    """Declare the verb."""
    weights = verbs.add_parser(
        "weights",
        help="list, download and find published weights by name",
        description="Weights lie in $HAYSTACK_WEIGHTS (by default in the user's cache); "
        "torch.hub's cache is looked at too. Downloads go on where they broke off; "
        "$HAYSTACK_WEIGHTS_MIRROR is an address that has the files by their names. Checksums are "
        "recorded at first sight and compared ever after.",
    )
    weights.add_argument("action", choices=("list", "pull", "path"))
    weights.add_argument("names", nargs="*", metavar="NAME", help="as haystack weights list says")
    weights.set_defaults(run=_weights)


def _weights(args: argparse.Namespace) -> Outcome:
    if args.action == "list":
        if args.names:
            raise InputError(f"haystack weights list takes no names, got {args.names[0]!r}")
        return _list()
    if not args.names:
        raise InputError(
            f"haystack weights {args.action} expects a name; see haystack weights list"
        )
    from haystack.weights import find, known

    for name in args.names:  # a misspelt one is found before the first gigabyte
        known(name)
    if args.action == "pull":
        return _pull(args.names)
    paths = {name: find(name) for name in args.names}
    if not args.json:
        print(*paths.values(), sep="\n")  # for the shell: $(haystack weights path NAME)
    return Outcome("", {"paths": paths})


def _list() -> Outcome:
    from haystack.weights import folder, locate
    from haystack.weights.catalogue import CATALOGUE

    rows = [
        {
            "name": weights.name,
            "about": weights.about,
            "use": weights.use,
            "licence": weights.licence,
            "url": weights.url,
            "path": locate(weights),
        }
        for weights in CATALOGUE
    ]
    cells = [
        (row["name"], row["about"], row["use"], row["licence"], row["path"] or "") for row in rows
    ]
    header = ("name", "what it is", "setting", "licence", "here as")
    text = "\n".join([*table(header, cells), "", f"folder: {folder()}"])
    return Outcome(text, {"folder": folder(), "weights": rows})


def _pull(names: list[str]) -> Outcome:
    from haystack.weights.download import pull

    paths = {}
    for name in names:
        with _Bar(name) as bar:
            paths[name] = pull(name, bar)
    lines = [f"{name}: {path}" for name, path in paths.items()]
    return Outcome("\n".join(lines), {"paths": paths})


class _Bar:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def _show(self, done: int, total: int | None) -> None:
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(
                total=total, desc=self._name, unit="B", unit_scale=True, file=sys.stderr
            )
        self._bar.update(done - self._bar.n)
