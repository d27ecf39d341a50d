"""``haystack demo``: the whole loop on bundled photographs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from haystack.cli.outcome import Outcome


def add_verbs(verbs: Any) -> None:
    """Declare the verb."""
    demo = verbs.add_parser(
        "demo", help="run the whole loop on bundled photographs", description=_demo.__doc__
    )
    demo.add_argument("out", type=Path, nargs="?", default=Path("demo-run"), help="folder to make")
    demo.add_argument("--answers", type=int, default=30, help="simulated answers per predicate")
    demo.add_argument("--seed", type=int, default=0, help="seed of training")
    demo.add_argument("--seeds", type=int, default=3, help="trainings behind the comparison")
    demo.add_argument("--steps", type=int, help="training steps, fewer for a quick look")
    demo.set_defaults(run=_demo)


def _demo(args: argparse.Namespace) -> Outcome:
    """Train, propose, answer, retrain and measure on photographs, then write a report."""
    from haystack.demo.run import DemoSettings, run_demo

    return run_demo(DemoSettings(args.out, args.answers, args.seed, args.seeds, args.steps))
