"""Verbs that run verbs: as the command line would, shown as such."""

from __future__ import annotations

import shlex
import sys

from haystack.cli.outcome import Outcome


def spelled(*arguments: object) -> str:
    """The command line of a verb with these arguments."""
    return f"haystack {shlex.join(str(argument) for argument in arguments)}"


def run_verb(*arguments: object) -> Outcome:
    """Run a verb, and show on stderr the command and what it says."""
    from haystack.cli.parser import parse

    print(f"$ {spelled(*arguments)}", file=sys.stderr, flush=True)
    args = parse([str(argument) for argument in arguments])
    outcome: Outcome = args.run(args)
    print(outcome.text.strip(), file=sys.stderr, flush=True)
    return outcome
