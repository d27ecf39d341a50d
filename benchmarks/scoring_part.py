"""The part of pipeline.py about scoring: pairs a second, and memory that does not grow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measure import Row, at_most, compared
from peers import Peers, run_driver


@dataclass(frozen=True)
class Sizes:
    """How much is scored.

    Args:
        score_images: images of the row with the goal.
        score_images_numpy: images that the yardstick gets; it holds all candidates in memory.
        score_images_many: images of a last run that shows growth; 0 = none. A million takes
            minutes.
        score_objects: segments an image, on average.
        score_top: M, rows kept per cluster and predicate.
        score_top_few: a second M, for which the lists are full and their images the last ones they
            will ever be long before ``score_images``; 0 = none.
    """

    score_images: int = 100_000
    score_images_numpy: int = 10_000
    score_images_many: int = 0
    score_objects: int = 20
    score_top: int = 1000
    score_top_few: int = 10


def scoring(sizes: Sizes, _: Peers, scratch: Path) -> list[Row]:
    """Score, filter and rank all pairs of synthetic images, logits given."""
    theirs = _run(sizes, scratch, "numpy", sizes.score_images_numpy, sizes.score_top)
    lengths = [sizes.score_images_numpy, sizes.score_images, sizes.score_images_many]
    runs = {
        top: {images: _run(sizes, scratch, "ours", images, top) for images in lengths if images}
        for top in (sizes.score_top, sizes.score_top_few)
        if top
    }
    many = runs[sizes.score_top]
    same = many[sizes.score_images_numpy]
    apart = np.abs(np.subtract(same["scores"], theirs["scores"])).max(initial=0.0)
    equal = (same["kept"], same["candidates"]) == (theirs["kept"], theirs["candidates"])
    if not equal or apart > 1e-3:
        raise SystemExit(f"the yardstick keeps other candidates; scores differ by {apart:.3g}")
    rows = []
    for images, ours in many.items():
        note = (
            f"{ours['pairs'] / ours['seconds']:,.0f} pairs/s, {ours['seconds']:.1f} s; "
            f"{ours['kept']:,} of {ours['candidates']:,} candidates kept"
        )
        goal = 10 if images == sizes.score_images else None
        peer = f"NumPy, {sizes.score_images_numpy:,} images"
        what = f"{images:,} images, {ours['pairs']:,} pairs"
        nanoseconds = 1e9 * ours["seconds"] / ours["pairs"]
        yardstick = 1e9 * theirs["seconds"] / theirs["pairs"]
        rows.append(
            compared(
                "scoring", what, nanoseconds, "ns/pair", peer, yardstick, at_least=goal, note=note
            )
        )
    rows[0] = _with_note(rows[0], theirs, apart)
    for top, of_lengths in runs.items():
        rows += _memory(sizes, top, of_lengths)
    return rows


def _memory(sizes: Sizes, top: int, runs: dict[int, dict[str, Any]]) -> list[Row]:
    """What scoring takes beside the rows that it keeps and the names of their images.

    It must not grow with the stream: a longer one may take a tenth more than ``score_images`` do.
    """
    rows = []
    limit = 1.1 * _beside_the_table(runs[sizes.score_images])
    for images, run in runs.items():
        note = (
            f"peak {run['peak_mib'] - run['libraries_mib']:.0f} MiB above the libraries and the "
            f"logits, of which {run['table_mib']:.1f} MiB are {run['kept']:,} rows and the names "
            "of their images"
        )
        what = f"peak memory beside the table, M = {top:,}, {images:,} images"
        ours = _beside_the_table(run)
        if images == sizes.score_images_many:
            rows.append(at_most("scoring", what, ours, "MiB", limit, note=note))
        else:
            rows.append(Row("scoring", what, ours, "MiB", note=note))
    return rows


def _beside_the_table(run: dict[str, Any]) -> float:
    return float(run["peak_mib"] - run["libraries_mib"] - run["table_mib"])


PARTS: dict[str, Callable[[Any, Peers, Path], list[Row]]] = {"scoring": scoring}


def _with_note(row: Row, theirs: dict[str, Any], apart: float) -> Row:
    memory = theirs["peak_mib"] - theirs["libraries_mib"]
    note = f"{row.note}; NumPy: {memory:.0f} MiB, the same candidates, scores within {apart:.1g}"
    return Row(**{**vars(row), "note": note})


def _run(sizes: Sizes, scratch: Path, by: str, images: int, top: int) -> dict[str, Any]:
    options = {
        "by": by,
        "images": images,
        "objects": sizes.score_objects,
        "top": top,
    }
    extra = [f"--{name}={value}" for name, value in options.items()]
    return run_driver("stream_scores", scratch, *extra, repeat=0)
