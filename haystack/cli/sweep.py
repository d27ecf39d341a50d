"""``haystack cluster WORKSPACE --sweep 10,25,50``: numbers of clusters beside each other."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from haystack.cli.outcome import Outcome
from haystack.text import table

if TYPE_CHECKING:
    from haystack.pipeline.jobs.sweep import SweepJob


def add_sweep_argument(verb: argparse.ArgumentParser) -> None:
    """The numbers of clusters."""
    verb.add_argument(
        "--sweep",
        type=_numbers,
        metavar="K,K,...",
        help="cluster with each of these numbers of clusters instead, draw no sheets, keep the "
        "workspace's clusters, and show inertia and stability to choose one by",
    )


def with_table(outcome: Outcome, job: SweepJob) -> Outcome:
    """The outcome of a sweep with what came of each number of clusters."""
    results = job.results()
    header = ("k", "inertia", "stability", "smallest", "largest", "empty")
    rows = [
        (
            found.k,
            found.inertia,
            float("nan") if found.stability is None else found.stability,
            found.smallest,
            found.largest,
            found.empty,
        )
        for found in results
    ]
    lines = [
        outcome.text,
        *table(header, rows),
        "inertia: mean squared distance to the centroid; stability: adjusted Rand index of "
        "clusterings of two halves of the images, 1 = equal, 0 = chance",
    ]
    data = [{**asdict(found), "stability": found.stability} for found in results]
    return replace(outcome, text="\n".join(lines), data={**outcome.data, "sweep": data})


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(
            f"expected numbers of clusters such as 10,25,50, got {text!r}"
        )
    return numbers
