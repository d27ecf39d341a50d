"""The verb ``status``: how far a workspace is, and when the rest will be done."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack.cli.outcome import Outcome
from haystack.errors import InputError
from haystack.text import duration, table

if TYPE_CHECKING:
    from haystack.executors.status import StageStatus

_ORDER = ("embed", "sweep", "cluster", "segment", "score", "gather", "propose", "export")
_HEADER = ("stage", "shards", "inputs", "ok", "quarantined", "seconds")
_CLEAR = "\x1b[H\x1b[2J"


def add_verbs(verbs: Any) -> None:
    """Declare the verb."""
    status = verbs.add_parser("status", help="how far a workspace is", description=_status.__doc__)
    status.add_argument("workspace", type=Path)
    status.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=5.0,
        metavar="SECONDS",
        help="show it again every 5 (or SECONDS) seconds, until Ctrl-C; with --json a line each",
    )
    status.set_defaults(run=_status)


def _status(args: argparse.Namespace) -> Outcome:
    """Say how far each stage of a workspace is, how fast, and when the rest will be done.

    Reads manifests only, so that it may be asked from anywhere while stages run.
    """
    if not (args.workspace / "workspace.yaml").is_file():
        raise InputError(
            "this folder is no workspace: it has no workspace.yaml", path=args.workspace
        )
    if args.watch is None:
        return _outcome(args.workspace)
    if not args.watch > 0:
        raise InputError(f"--watch expects a positive number of seconds, got {args.watch}")
    outcome = Outcome("", {})
    try:
        while True:
            outcome = _outcome(args.workspace)
            if args.json:
                print(json.dumps(outcome.data), flush=True)
            else:
                text = f"{_CLEAR if sys.stderr.isatty() else ''}{outcome.text}"
                print(text, file=sys.stderr, flush=True)
            time.sleep(args.watch)
    except (KeyboardInterrupt, BrokenPipeError):
        return Outcome("", outcome.data)


def _outcome(workspace: Path) -> Outcome:
    from haystack.executors.status import read_status

    stages = sorted(read_status(workspace), key=lambda status: _place(status.stage))
    text = "\n".join(table((*_HEADER, "items/s", "to go", "state"), [*map(_row, stages)]))
    return Outcome(
        text if stages else "no stage has run here yet",
        {"stages": [_data(status) for status in stages]},
    )


def _place(stage: str) -> tuple[int, str]:
    return (_ORDER.index(stage) if stage in _ORDER else len(_ORDER)), stage


def _row(status: StageStatus) -> tuple[object, ...]:
    shards = str(status.shards) if status.total is None else f"{status.shards} of {status.total}"
    return (
        status.stage,
        shards,
        status.inputs,
        status.ok,
        status.quarantined,
        round(status.seconds, 1),
        "-" if status.pace is None else f"{status.pace.items:.3g}",
        "-" if status.seconds_to_go is None else duration(status.seconds_to_go),
        _state(status),
    )


def _data(status: StageStatus) -> dict[str, object]:
    from haystack.executors.status import age

    return {
        "stage": status.stage,
        "shards": status.shards,
        "shards_total": status.total,
        "inputs": status.inputs,
        "ok": status.ok,
        "quarantined": status.quarantined,
        "seconds": round(status.seconds, 1),
        "items_per_second": None if status.pace is None else status.pace.items,
        "seconds_to_go": status.seconds_to_go,
        "seconds_since_latest": age(status),
        "state": _state(status),
    }


def _state(status: StageStatus) -> str:
    from haystack.executors.status import age

    if status.outdated_by:
        return f"outdated by {status.outdated_by}"
    if not status.left:
        return "up to date"
    seconds = age(status)
    return "begun" if seconds is None else f"latest shard {duration(seconds)} ago"
