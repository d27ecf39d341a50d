"""The parts of the benchmark: each makes its inputs, measures ours and the peers, and compares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ours
import torch
from heads import case, without_gradients
from mask_parts import masks
from measure import Row, at_most, best_cpu_seconds, best_seconds, compared
from peers import Peers, run_driver
from setting import MS, Sizes, agreement, per_image_ms
from synthetic import Scenes, scenes

from haystack import evaluate
from haystack.metrics import SceneGraphMetrics


def predcls(sizes: Sizes, peers: Peers, scratch: Path) -> list[Row]:
    """PredCls of PSG's test set: four recalls against the peers, then the whole table."""
    data = scenes(
        sizes.images,
        seed=0,
        objects=sizes.objects,
        predicates=sizes.predicates,
        relations=sizes.relations,
        negatives=sizes.relations,
    )
    few = _head(data, sizes.kaihuatang_images)
    data.save(scratch / "all")
    few.save(scratch / "few")
    inputs = ours.batched(data)
    training = ours.class_triplets(data, step=2)
    count, repeat = len(data), sizes.repeat
    four = SceneGraphMetrics(data.predicates, protocol="sgbench", metrics=ours.FOUR)
    named = (*ours.FOUR, *ours.LABELLED, "IMR", "zR", "A")
    table = SceneGraphMetrics(data.predicates, metrics=named, training=training)
    whole = SceneGraphMetrics(data.predicates, training=training)

    def milliseconds(metrics: SceneGraphMetrics) -> float:
        return 1e3 / count * best_cpu_seconds(lambda: ours.feed(metrics, inputs), repeat)

    base = milliseconds(four)
    kaihuatang, everything = (
        peers.run_kaihuatang(scratch / "few", "predcls", 1, four=four) for four in (True, False)
    )
    what = "R, mR, ngR, ng-mR @ 3 K"
    few_note = f"on the first {len(few)} images, time per image"
    rows = [
        *_against_sgbench("predcls", what, four, base, peers, scratch / "all", repeat),
        compared(
            "predcls",
            what,
            base,
            MS,
            "KaihuaTang, these four",
            per_image_ms(kaihuatang),
            note=few_note,
        ),
        compared(
            "predcls",
            f"{what}; theirs with zR, ng-zR, A@K",
            base,
            MS,
            "KaihuaTang, all of it",
            per_image_ms(everything),
            at_least=150,
            note=f"{few_note}; it cannot be asked for less",
        ),
        _within("+ P-AUC, PDD, PDO, IMR, zR, A@K", milliseconds(table), base),
        _within("every metric there is", milliseconds(whole), base, goal=False),
    ]
    return rows + _on_cuda("predcls", what, four, inputs, count, base, repeat)


def haystack(sizes: Sizes, peers: Peers, scratch: Path) -> list[Row]:
    """P-AUC, PDD and PDO of the Haystack data set against the authors' script."""
    data = scenes(
        sizes.haystack_images,
        seed=1,
        objects=sizes.objects,
        predicates=sizes.predicates,
        relations=1,
        negatives=1,
    )
    data = _mostly_negative(data, sizes.haystack_labels)
    size = sizes.authors_images or len(data)
    part = _head(data, min(size, len(data)))
    ours.write_scenes(scratch / "all", data)
    if len(part) < len(data):
        ours.write_scenes(scratch / "part", part)
    inputs = ours.batched(data)
    choices: dict[str, Any] = {"metrics": ours.LABELLED, "protocol": "haystack-v1"}
    metrics = SceneGraphMetrics(data.predicates, **choices)
    memory = best_cpu_seconds(lambda: ours.feed(metrics, inputs), sizes.repeat)

    def from_files() -> None:
        evaluate(scratch / "all/annotations.json", scratch / "all/predictions.npy", **choices)

    files = best_cpu_seconds(from_files, 1)
    theirs = peers.run_authors(scratch / ("part" if len(part) < len(data) else "all"), 1)
    scale = len(data) / len(part)
    note = (
        f"the script got {len(part)} of {len(data)} images; its time, which grows faster than "
        f"the images, is multiplied by {scale:g}, to its advantage"
        if len(part) < len(data)
        else f"both on all {len(data)} images"
    )
    in_memory = None if theirs is None else theirs["seconds"] * scale
    total = None if theirs is None else (theirs["seconds"] + theirs["reading"]) * scale
    labels_seen = len(data.arrays["relations"]) + len(data.arrays["negatives"])
    what = f"P-AUC, PDD, PDO, {labels_seen} labels"
    who = "authors' script"
    return [
        compared(
            "haystack", f"{what}, in memory", memory, "s", who, in_memory, at_least=100, note=note
        ),
        compared("haystack", f"{what}, files to report", files, "s", who, total, note=note),
    ]


def sgdet(sizes: Sizes, peers: Peers, scratch: Path) -> list[Row]:
    """SGDet with boxes against SGBench, and the memory of a long stream."""
    data = scenes(
        sizes.sgdet_images,
        seed=4,
        objects=min(12, sizes.detections),
        detections=sizes.detections,
        predicates=sizes.predicates,
        relations=sizes.relations,
    )
    data.save(scratch / "all")
    inputs = ours.batched(data)
    four = SceneGraphMetrics(data.predicates, protocol="sgbench", metrics=ours.FOUR)
    seconds = best_cpu_seconds(lambda: ours.feed(four, inputs), sizes.repeat)
    base = seconds * 1e3 / len(data)
    pairs = sizes.detections * (sizes.detections - 1)
    what = f"R, mR, ngR, ng-mR @ 3 K, {sizes.detections} boxes, {pairs} pairs"
    rows = _against_sgbench("sgdet", what, four, base, peers, scratch / "all", sizes.repeat)
    rows += _on_cuda("sgdet", what, four, inputs, len(data), base, sizes.repeat)
    _head(data, 8).save(scratch / "few")
    extra = f"--images={sizes.stream_images}"
    stream = run_driver("stream_ours", scratch / "few", extra, repeat=0)
    note = (
        f"every metric; {stream['libraries_mib']:.0f} MiB are Python and its libraries, "
        f"{stream['annotated_mib'] - stream['libraries_mib']:.0f} MiB the annotations as read; "
        f"{1e3 * stream['seconds'] / sizes.stream_images:.2f} CPU ms an image"
    )
    what = f"peak memory, {sizes.stream_images} images streamed"
    return [*rows, at_most("sgdet", what, stream["peak_mib"], "MiB", 1024, note=note)]


def training(sizes: Sizes, peers: Peers, scratch: Path) -> list[Row]:
    """An update in a training loop against the forward pass of VCTree's head."""
    del peers, scratch
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = scenes(
        16,
        seed=5,
        objects=sizes.objects,
        predicates=sizes.predicates,
        relations=sizes.relations,
        negatives=sizes.relations,
    )
    predictions, targets = ours.records(data)
    predictions = ours.to_device(predictions, device)
    metrics = SceneGraphMetrics(data.predicates).to(device)

    def update() -> None:
        metrics.reset()
        metrics.update(predictions, targets)

    spent = 1e3 * best_seconds(update, 5 * sizes.repeat, device)
    forward = without_gradients(case(data, device=device).forward)
    theirs = 1e3 * best_seconds(forward, sizes.repeat, device)
    note = (
        f"on {device}, every metric, {spent / theirs:.2%} of a forward pass with OpenPSG's widths"
    )
    return [
        compared(
            "training",
            "update of 16 images",
            spent,
            "ms",
            "VCTree forward",
            theirs,
            at_least=50,
            note=note,
        )
    ]


PARTS: dict[str, Callable[[Sizes, Peers, Path], list[Row]]] = {
    "predcls": predcls,
    "haystack": haystack,
    "masks": masks,
    "sgdet": sgdet,
    "training": training,
}


def _against_sgbench(
    part: str,
    what: str,
    metrics: SceneGraphMetrics,
    base: float,
    peers: Peers,
    folder: Path,
    repeat: int,
) -> list[Row]:
    """Three rows: it takes ranked triplets, so that much depends on who ranks them, and how.

    The goal is about the first, a sort of all candidates: a file of its format lists them all.
    """
    values = metrics.compute()
    rows = []
    for mode, how, goal in (
        ("rank-all", "SGBench, all sorted", 10),
        ("rank", "SGBench, partitioned", None),
        ("recall", "SGBench, ranked before", None),
    ):
        theirs = peers.run_sgbench(folder, mode, repeat)
        note = "" if theirs is None else agreement(values, theirs["values"])
        rows.append(
            compared(part, what, base, MS, how, per_image_ms(theirs), at_least=goal, note=note)
        )
    return rows


def _head(data: Scenes, images: int) -> Scenes:
    """The first images."""
    counts = {group: count[:images] for group, count in data.counts.items()}
    names = {name: group for name, group in data.groups() if name in data.arrays}
    arrays = {name: data.arrays[name][: counts[group].sum()] for name, group in names.items()}
    return Scenes(arrays, counts, data.predicates)


def _mostly_negative(data: Scenes, labels: int) -> Scenes:
    """So many labels, more than two an image, of which a twelfth is positive.

    From images with a positive and a negative label: most positives become negatives, and some
    images' first negative is negative for the next predicate too.
    """
    positives, negatives = data.arrays["relations"], data.arrays["negatives"]
    images = np.arange(len(data))
    stays = images < labels // 12
    twice = images[: max(0, labels - 2 * len(data))]
    again = negatives[twice] + np.array([0, 0, 1])
    again[:, 2] %= data.predicates
    owners = np.concatenate([images, images[~stays], twice])
    order = np.argsort(owners, kind="stable")
    every = np.concatenate([negatives, positives[~stays], again])[order]
    counts = {"relations": stays.astype(int), "negatives": np.bincount(owners)}
    arrays = {"relations": positives[stays], "negatives": every}
    return Scenes({**data.arrays, **arrays}, {**data.counts, **counts}, data.predicates)


def _within(what: str, spent: float, base: float, *, goal: bool = True) -> Row:
    """A row of the whole table, relative to the four recalls."""
    ratio = spent / base
    note = f"{ratio:.2f} times the four recalls"
    met = ratio < 2 if goal else None
    wanted = "< 2 x the four" if goal else ""
    return Row("predcls", what, spent, MS, "ours, four recalls", base, ratio, wanted, met, note)


def _on_cuda(
    part: str,
    what: str,
    metrics: SceneGraphMetrics,
    inputs: list[ours.Batch],
    images: int,
    cpu: float,
    repeat: int,
) -> list[Row]:
    """The same on a GPU, predictions there and annotations on the host; wall time."""
    if not torch.cuda.is_available():
        return []
    moved = metrics.to("cuda")
    there = [(ours.to_device(predictions, "cuda"), targets) for predictions, targets in inputs]
    spent = best_seconds(lambda: ours.feed(moved, there), repeat, "cuda")
    metrics.to("cpu")
    return [
        compared(
            part,
            f"{what}, on the GPU",
            1e3 * spent / images,
            MS,
            "ours, CPU",
            cpu,
            note="wall time, waited for at the end only",
        )
    ]
