"""The verb ``import``: what other tools wrote, or another database held."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from haystack.cli.outcome import Outcome
from haystack.errors import InputError


def add_verbs(verbs: Any) -> None:
    """Declare the verb."""
    verb = verbs.add_parser(
        "import", help="events of another database, into a new one", description=_import.__doc__
    )
    verb.add_argument("file", type=Path, help="events.jsonl, of haystack export --events")
    verb.add_argument("--format", choices=("events",), required=True, help="what the file is")
    into = verb.add_argument_group("events")
    into.add_argument("--workspace", type=Path, metavar="WORK", help="campaign that they belong to")
    into.add_argument(
        "--database", help="a new one: SQLAlchemy URL; default: annotations.db in the workspace"
    )
    verb.set_defaults(run=_import)


def _import(args: argparse.Namespace) -> Outcome:
    """Enter what people said into a new database, for example to move to PostgreSQL."""
    from haystack.annotate.event_files import read_jsonl
    from haystack.annotate.store.event_log import enter
    from haystack.annotate.store.store import AnnotationStore
    from haystack.cli.stages import database_of
    from haystack.pipeline.workspace import Workspace

    if args.workspace is None:
        raise InputError("--format events needs --workspace WORK, whose questions they answer")
    workspace = Workspace.open(args.workspace)
    records = read_jsonl(args.file, workspace.vocabulary.predicate_classes)
    with AnnotationStore(database_of(args)) as store:
        count = enter(store.database, records)
    text = (
        f"entered {count} events; give accounts anew, and load the queue with: "
        f"haystack annotate {args.workspace}"
        + (f" --database {args.database}" if args.database else "")
    )
    return Outcome(text, {"events": count, "database": args.database})
