"""The part about masks: matching id maps in memory, and evaluating from files."""

from __future__ import annotations

import json
import pickle
from functools import partial
from pathlib import Path

import decoders
import numpy as np
import ours
import torch
from measure import Row, best_cpu_seconds, compared
from peers import Peers
from setting import MS, Sizes, agreement, per_image_ms
from synthetic import Segmented, segmented

from haystack import evaluate
from haystack.metrics.functional import id_map_overlaps, match_objects


def masks(sizes: Sizes, peers: Peers, scratch: Path) -> list[Row]:
    """Matching of panoptic segments: id maps in memory, then from files."""
    images = segmented(
        sizes.mask_images,
        seed=2,
        segments=sizes.segments,
        height=sizes.height,
        width=sizes.width,
    )
    ours.write_segmented(
        scratch, images, predicates=sizes.predicates, relations=sizes.relations, seed=3
    )
    per_image = 1e3 / len(images)
    memory = per_image * best_cpu_seconds(lambda: _match(images), sizes.repeat)
    theirs = peers.run_sgbench(scratch, "match", sizes.repeat)
    note = ""
    if theirs is not None:
        note = "same matches" if theirs["values"] == _match(images) else "OTHER MATCHES"
    what = f"match {sizes.segments} segments, {sizes.height} x {sizes.width}"
    rows = [
        compared(
            "masks",
            f"{what}, in memory",
            memory,
            MS,
            "SGBench",
            per_image_ms(theirs),
            at_least=10,
            note=note,
        )
    ]
    return rows + _masks_from_files(images, sizes, peers, scratch)


def _masks_from_files(
    images: list[Segmented], sizes: Sizes, peers: Peers, scratch: Path
) -> list[Row]:
    per_image = 1e3 / len(images)
    pictures = [(scratch / f"{i}.png").read_bytes() for i in range(len(images))]
    times = {}
    for name, decode in decoders.available().items():
        all_of_them = partial(_decode_all, decode, pictures)
        times[name] = per_image * best_cpu_seconds(all_of_them, sizes.repeat)
    read = times.pop(decoders.OURS)
    listed = ", ".join(f"{name} {value:.1f}" for name, value in times.items())
    theirs = None
    rows = []
    if peers.sgbench is not None:
        peers.run_sgbench(scratch, "write")
        theirs = peers.run_sgbench(scratch, "file", 1)
        archive = scratch / "predictions.zip"
        report = evaluate(scratch / "annotations.json", archive, protocol="sgbench")
        assert theirs is not None
        zipped = _evaluation_ms(scratch, archive, len(images), sizes.repeat)
        note = (
            f"both read the same ZIP of TIFFs; reading the annotations' PNG takes {read:.1f} ms, "
            f"{read / zipped:.0%} of ours; " + agreement(report.metrics, theirs["values"])
        )
        rows.append(
            compared(
                "masks",
                "from files, SGBench's ZIP",
                zipped,
                MS,
                "SGBench",
                per_image_ms(theirs),
                at_least=5,
                note=note,
            )
        )
    pickled = _write_pickle(images, sizes, scratch)
    total = _evaluation_ms(scratch, pickled, len(images), sizes.repeat)
    note = (
        f"predictions as id maps (fair-psgg's pickle); reading the annotations' PNG takes "
        f"{read:.1f} ms, {read / total:.0%} of the total; decoding alone: {listed} ms"
    )
    rows.append(
        compared(
            "masks",
            "from files, id maps",
            total,
            MS,
            "SGBench",
            per_image_ms(theirs),
            at_least=5,
            note=note,
        )
    )
    return rows


def _decode_all(decode: decoders.Decoder, pictures: list[bytes]) -> None:
    for picture in pictures:
        decode(picture)


def _match(images: list[Segmented]) -> list[list[int]]:
    """The annotated segment of each predicted one, -1 for none: SGBench's rule."""
    ids = [torch.arange(len(image.labels)) for image in images]
    labels = torch.cat([torch.from_numpy(image.labels) for image in images])
    overlaps = id_map_overlaps(
        [torch.from_numpy(image.truth) for image in images],
        [torch.from_numpy(image.predicted) for image in images],
        ids,
        ids,
    )
    pairs = overlaps.pairs
    matches = match_objects(overlaps.iou(), pairs, labels, labels, rule="many-to-one")
    found = torch.full((len(labels),), -1)
    found[pairs.predicted[matches.matched]] = pairs.truth[matches.matched]
    first = torch.cumsum(torch.tensor([0, *map(len, ids)]), 0)[pairs.predicted_images]
    local = torch.where(found < 0, -1, found - first)
    return [part.tolist() for part in local.split([len(part) for part in ids])]


def _evaluation_ms(folder: Path, predictions: Path, images: int, repeat: int) -> float:
    def run() -> None:
        evaluate(folder / "annotations.json", predictions, protocol="sgbench")

    return 1e3 / images * best_cpu_seconds(run, repeat)


def _write_pickle(images: list[Segmented], sizes: Sizes, folder: Path) -> Path:
    """The predictions as fair-psgg stores them, id maps in int64."""
    rng = np.random.default_rng(6)
    content = []
    truths = json.loads((folder / "annotations.json").read_text())["data"]
    for image, truth in zip(images, truths, strict=True):
        pairs = np.argwhere(~np.eye(len(image.labels), dtype=bool))
        content.append(
            {
                "img_id": truth["image_id"],
                "bboxes": None,
                "mask": image.predicted.astype(np.int64),
                "box_label": image.labels,
                "pairs": pairs,
                "rel_scores": rng.random((len(pairs), 1 + sizes.predicates), dtype=np.float32),
                "rel_rank": None,
            }
        )
    path = folder / "predictions.pkl"
    path.write_bytes(pickle.dumps(content))
    return path
