"""Do explicit negatives raise P-AUC on held-out images? Trains with and without them, and compares.

    python benchmarks/negatives.py                      # the five seeds of benchmarks/README.md
    python benchmarks/negatives.py --heads motifs imp --seeds 3 --settings steps=100

psg-mini is annotated with 608 explicit negatives and 137 "no relation" pairs, by people. Each model
is trained three times on the same images: on positives alone; with the explicit negatives of its
training images; with "no relation" pairs as well. Held-out labels are always complete.

Two ways of holding out: psg-mini's own split (32 photographs to learn from, 21 to measure on), and
cross-validation over all 53, whose predictions are pooled, so that every label is measured once.

The interval is that of the difference to positives alone, averaged over the seeds, when images are
resampled, the same ones for both: how far it would move with other photographs. Beside it stands
how many seeds point the same way, and the spread over the seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean, stdev
from typing import Any

import torch

from haystack.cli.configs import find_config
from haystack.config import load_config
from haystack.evaluation.evaluator import measure, prepare
from haystack.evaluation.report import without_nan
from haystack.evaluation.uncertainty import ResampledMetrics, resample
from haystack.io import read_psg
from haystack.metrics.functional.bootstrap import percentile_interval
from haystack.models.relation.config import HEADS
from haystack.models.relation.predict import predict_dataset
from haystack.scene_graph import NO_RELATION, RelationScores, SceneGraph, SceneGraphDataset
from haystack.training.config import TrainConfig
from haystack.training.trainer import train

ARMS = ("positives", "+ negatives", "+ negatives, no relation")
METRICS = ("P-AUC", "PDD", "PDO", "mR")
SHOWN = ("P-AUC", "PDD", "PDO", "mR@50")


@dataclass(frozen=True)
class Difference:
    """A metric of an arm against positives alone, averaged over the seeds.

    Args:
        head, way, arm, metric: of what.
        value: mean over the seeds.
        difference: the same, minus that of positives alone.
        low, high: where the difference lies with 95 % confidence, over images; NaN where all
            resamples agree.
        spread: standard deviation of the difference over the seeds.
        raised: seeds in which the value is higher.
    """

    head: str
    way: str
    arm: str
    metric: str
    value: float
    difference: float
    low: float
    high: float
    spread: float
    raised: int


def main() -> None:
    options = _parser().parse_args()
    started, rows = time.process_time(), []
    with tempfile.TemporaryDirectory(prefix="benchmark-negatives-") as cache:
        for head in options.heads:
            settings = [*options.settings, f"cache={cache}"]
            config = load_config(TrainConfig(), find_config(f"train/{head}_psg_mini"), settings)
            for way in options.ways:
                rows += study(config, way, options.seeds, options.folds, options.replicates)
                print(f"{head}, {way}: done", file=sys.stderr, flush=True)
    print(as_table(rows, options.seeds), file=sys.stderr)
    print(f"{time.process_time() - started:.0f} s of CPU time", file=sys.stderr)
    if options.json:
        print(json.dumps(without_nan([asdict(row) for row in rows])))


def study(
    config: TrainConfig, way: str, seeds: int, folds: int, replicates: int
) -> list[Difference]:
    """Train every arm with every seed, and compare the arms on the same images."""
    dataset = read_psg(config.annotations)
    cuts = [tuple(dataset.test_image_ids)]
    if way == "cross-validated":
        ids = [graph.image_id for graph in dataset.graphs]
        cuts = [tuple(ids[fold::folds]) for fold in range(folds)]
    measured = tuple(image_id for cut in cuts for image_id in cut)
    prepared = prepare(replace(dataset, test_image_ids=measured), "paper", split="test")
    states = {
        (arm, seed): measure(
            prepared,
            predictions(replace(config, seed=seed), dataset, cuts, arm),
            ResampledMetrics,
            ks=(50,),
            metrics=METRICS,
            no_relation="last",
            from_logits=False,
            device="cpu",
        ).states
        for arm in ARMS
        for seed in range(seeds)
    }
    values = {key: state.compute() for key, state in states.items()}
    drawn = dict(
        zip(states, resample([s.resampler() for s in states.values()], replicates, 0), strict=True)
    )

    def compared(arm: str, metric: str) -> Difference:
        own = [float(values[arm, seed][metric]) for seed in range(seeds)]
        base = [float(values[ARMS[0], seed][metric]) for seed in range(seeds)]
        apart = [a - b for a, b in zip(own, base, strict=True)]
        moved = torch.stack(
            [drawn[arm, seed][metric] - drawn[ARMS[0], seed][metric] for seed in range(seeds)]
        ).mean(0)
        bounds = percentile_interval(moved[:, None])
        return Difference(
            config.model.head,
            way,
            arm,
            metric,
            mean(own),
            mean(apart),
            float(bounds.low),
            float(bounds.high),
            stdev(apart) if seeds > 1 else 0.0,
            sum(difference > 0 for difference in apart),
        )

    return [compared(arm, metric) for metric in SHOWN for arm in ARMS]


def predictions(
    config: TrainConfig, dataset: SceneGraphDataset, cuts: Sequence[tuple[str, ...]], arm: str
) -> list[RelationScores]:
    """Scores of the images of each cut, by a model that has seen all images but those."""
    labelled = replace(dataset, graphs=tuple(labels_of(graph, arm) for graph in dataset.graphs))
    found: list[RelationScores] = []
    for cut in cuts:
        parted = replace(labelled, test_image_ids=cut)
        model = train(config, parted).model
        found += predict_dataset(model, parted, "test")
    return found


def labels_of(graph: SceneGraph, arm: str) -> SceneGraph:
    """The labels of a training image in an arm."""
    if arm == ARMS[2]:
        return graph
    named = graph.neg_relations[graph.neg_relations[:, 2] != NO_RELATION]
    return replace(graph, neg_relations=named if arm == ARMS[1] else named[:0])


def as_table(rows: Sequence[Difference], seeds: int) -> str:
    """The differences as Markdown."""
    lines = [
        f"| head | held out | metric | trained on | value | difference (95 %) | seeds of {seeds} "
        "that raise it | spread over seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        compared = row.arm != ARMS[0]
        cells: list[Any] = [row.head, row.way, row.metric, row.arm, f"{row.value:.3f}"]
        cells.append(
            f"{row.difference:+.3f} ({row.low:+.3f} to {row.high:+.3f})" if compared else ""
        )
        cells += [row.raised, f"{row.spread:.3f}"] if compared else ["", ""]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=["vctree"])
    parser.add_argument(
        "--ways",
        nargs="+",
        choices=("split", "cross-validated"),
        default=["split", "cross-validated"],
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--replicates", type=int, default=1000)
    parser.add_argument("--settings", nargs="+", default=[], metavar="key=value")
    parser.add_argument("--json", action="store_true", help="print the rows on stdout")
    return parser


if __name__ == "__main__":
    main()
