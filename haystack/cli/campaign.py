"""The verb ``campaign``: rounds of retraining and proposing, and how they went."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack.cli.executors import add_executor_arguments
from haystack.cli.outcome import OK, QUARANTINED, Outcome
from haystack.cli.stages import (
    add_database_argument,
    add_workspace_arguments,
    database_of,
    open_workspace,
)
from haystack.cli.verbs import spelled
from haystack.errors import InputError
from haystack.text import table

if TYPE_CHECKING:
    from haystack.campaign.rounds import Round
    from haystack.campaign.steps import Work
    from haystack.pipeline.workspace import Workspace

_STEPS = ("answers", "train", "measure", "score", "propose", "load", "report")
_EXECUTOR = ("executor", "devices", "workers", "ray_address")


def add_verbs(verbs: Any) -> None:
    """Declare the verb."""
    campaign = verbs.add_parser(
        "campaign", help="retrain on the answers and propose again, round by round"
    )
    kinds = campaign.add_subparsers(dest="what", metavar="WHAT", required=True)
    following = kinds.add_parser("next", help=_next.__doc__, description=_next.__doc__)
    add_workspace_arguments(following)
    add_database_argument(following)
    add_executor_arguments(following)
    following.add_argument(
        "--dry-run", action="store_true", help="show the steps and what is done; change nothing"
    )
    following.add_argument(
        "--stop-after",
        choices=_STEPS,
        help="go no further; the next run goes on. With --stop-after measure, the stage score can "
        "be run elsewhere, for example as a Slurm array",
    )
    following.set_defaults(run=_next)
    status = kinds.add_parser("status", help=_status.__doc__, description=_status.__doc__)
    status.add_argument("workspace", type=Path, help="folder of the campaign")
    add_database_argument(status)
    status.set_defaults(run=_status)
    for verb in (following, status):
        verb.add_argument("--json", action="store_true", help="one JSON object on stdout")
        verb.add_argument("--debug", action="store_true", help="show the traceback of a failure")


def _next(args: argparse.Namespace) -> Outcome:
    """Retrain on the answers so far, score and propose again; or go on where that was stopped."""
    from haystack.campaign.rounds import ROUNDS
    from haystack.campaign.steps import STEPS
    from haystack.executors.locks import stage_lock

    if args.executor == "slurm":
        raise InputError(
            "a round is one process; use --stop-after measure, then run the stage score as a Slurm "
            "array (tools/slurm_array.sh), then the same command again"
        )
    workspace = open_workspace(args)
    work, unfinished = _work(args, workspace)
    if args.dry_run:
        return _plan(work)
    (args.workspace / ROUNDS).mkdir(parents=True, exist_ok=True)
    with stage_lock(args.workspace, ROUNDS, plan="", shared=False):
        if not unfinished:
            workspace.save()
            work.round.begin(_beginning(work))
        for step in STEPS:
            if work.round.result(step.name) is None:
                work.round.finish(step.name, step.run(work))
            if step.name == args.stop_after and not work.round.is_done:
                return _stopped(work, step.name)
    content = json.loads((work.round.folder / "report.json").read_text(encoding="utf-8"))
    text = (work.round.folder / "report.txt").read_text(encoding="utf-8")
    code = QUARANTINED if content["quarantined"] else OK
    return Outcome(f"{text}\nwrote {work.round.folder / 'report.json'}", content, code)


def _work(args: argparse.Namespace, workspace: Workspace) -> tuple[Work, bool]:
    """The round to work on, and whether it was begun already."""
    from haystack.campaign.rounds import Round, begun_rounds
    from haystack.campaign.steps import Work

    root = Path(os.path.abspath(args.workspace))  # rounds may go on from another folder
    rounds = begun_rounds(root)
    unfinished = bool(rounds) and not rounds[-1].is_done
    number = rounds[-1].number + (not unfinished) if rounds else 1
    options = [
        word
        for name in _EXECUTOR
        if getattr(args, name) not in (None, "local")
        for word in (f"--{name.replace('_', '-')}", str(getattr(args, name)))
    ]
    work = Work(workspace, database_of(args), Round(root, number), options)
    if unfinished:
        _refuse_other_settings(work)
    else:
        _refuse_nothing_new(work, rounds)
        if not work.before:
            raise InputError(
                "no model has proposed here yet; run haystack score, propose and annotate first",
                path=args.workspace,
            )
        work.train_words()  # says what is missing before anything is written
    return work, unfinished


def _beginning(work: Work) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "round": work.round.number,
        "model": work.workspace.config.score.model,
        "events": _events(work.database, work.workspace.root),
        "settings": asdict(work.config),
    }


def _refuse_other_settings(work: Work) -> None:
    from dataclasses import asdict

    begun, now = work.round.beginning()["settings"], asdict(work.config)
    changed = [name for name in now if now[name] != begun.get(name)]
    if changed:
        told = "; ".join(f"campaign.{n}: {begun.get(n)!r} then, {now[n]!r} now" for n in changed)
        raise InputError(
            f"round {work.round.number} was begun with other settings ({told}); finish it with "
            "those, or remove its folder to begin it anew",
            path=work.round.folder,
        )


def _refuse_nothing_new(work: Work, rounds: list[Round]) -> None:
    events = _events(work.database, work.workspace.root)
    if rounds and rounds[-1].beginning()["events"] == events:
        raise InputError(
            f"nothing was answered since round {rounds[-1].number} began; run: haystack annotate "
            f"{work.workspace.root}"
        )


def _events(database: str, workspace: Path) -> int:
    from haystack.annotate.store.store import AnnotationStore
    from haystack.campaign.answers import require_database

    require_database(database, workspace)
    with AnnotationStore(database) as store:
        return store.event_count()


def _plan(work: Work) -> Outcome:
    from haystack.campaign.steps import STEPS

    steps = []
    for step in STEPS:
        command = None if step.command is None else spelled(*step.command(work))
        is_done = work.round.result(step.name) is not None
        steps.append({"step": step.name, "what": step.what, "done": is_done, "command": command})
    lines = [f"round {work.round.number} of {work.workspace.root}:"]
    for entry in steps:
        lines.append(f"  {'done' if entry['done'] else 'to do':6} {entry['what']}")
        if entry["command"] is not None:
            lines.append(f"         $ {entry['command']}")
    data = {"round": work.round.number, "model": work.before, "steps": steps}
    return Outcome("\n".join(lines), data)


def _stopped(work: Work, step: str) -> Outcome:
    from haystack.campaign.steps import STEPS

    following = STEPS[_STEPS.index(step) + 1]
    text = f"round {work.round.number} is stopped after '{step}'; next: {following.what}"
    if following.command is not None:
        text += f"\n$ {spelled(*following.command(work))}"
    return Outcome(text, {"round": work.round.number, "stopped_after": step})


def _status(args: argparse.Namespace) -> Outcome:
    """Show the rounds of a campaign: how far each is, and its needles per 100 answers."""
    from haystack.campaign.answers import read_answers
    from haystack.campaign.report import yield_table, yields
    from haystack.campaign.rounds import begun_rounds, current_round
    from haystack.pipeline.workspace import Workspace

    workspace = Workspace.open(args.workspace)
    found = yields(workspace, read_answers(workspace, database_of(args)))
    rounds = []
    for one in begun_rounds(args.workspace):
        done = [step for step in _STEPS if one.result(step) is not None]
        left = [step for step in _STEPS if step not in done]
        rounds.append(
            {
                "round": one.number,
                "done": one.is_done,
                "next_step": left[0] if left else None,
                "model_before": one.beginning()["model"],
                "events": one.beginning()["events"],
            }
        )
    now = current_round(args.workspace)
    rows = [(one["round"], "done" if one["done"] else f"at {one['next_step']}") for one in rounds]
    lines = [f"the queue is that of round {now}"]
    if rows:
        lines += ["", *table(("round", "state"), rows)]
    lines += ["", *yield_table(found)]
    return Outcome("\n".join(lines), {"current": now, "rounds": rounds, "yield": found})
