"""The best and the worst images of a model, as pictures of what it said."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import PurePosixPath

from haystack.drawing.scene import DrawnTriplet, SceneDrawing, draw_scene
from haystack.errors import InputError
from haystack.io.images import read_rgb
from haystack.io.panoptic_png import read_panoptic_png, segment_positions
from haystack.reporting.outcomes import ImageOutcome
from haystack.scene_graph import SceneGraphDataset
from haystack.text import display_name

_TRIPLETS = 6


@dataclass(frozen=True)
class Example:
    """One picture of the report.

    Args:
        heading: which image, and how much of it the model has.
        picture: a ``data:`` address; empty where the photograph cannot be read, for ``reason``.
        truths: (subject, predicate, object, where the model has it).
        reason: why there is no picture.
    """

    heading: str
    picture: str
    truths: tuple[tuple[str, str, str, str], ...]
    reason: str = ""


def example(outcome: ImageOutcome, dataset: SceneGraphDataset) -> Example:
    """The photograph with the model's first triplets, and where its list has the annotated ones.

    Args:
        outcome: the image.
        dataset: its annotations; photographs and panoptic PNGs are read from beside them.
    """
    graph, predicates = outcome.graph, dataset.vocabulary.predicate_classes
    names = [display_name(dataset.vocabulary.object_classes[s.category]) for s in graph.segments]
    found = sum(t.rank is not None and t.rank < outcome.k for t in outcome.truths)
    heading = f"{graph.image_id}: {found} of {len(outcome.truths)} among the first {outcome.k}"
    ordered = sorted(outcome.truths, key=lambda t: (t.rank is None, t.rank or 0, *t[:3]))
    truths = tuple(
        (
            names[t.subject],
            predicates[t.predicate],
            names[t.object],
            "another predicate" if t.rank is None else f"no. {t.rank + 1}",
        )
        for t in ordered
    )
    try:
        size = (graph.height, graph.width)
        photograph = read_rgb(dataset.path_of(graph.file_name), size=size)
        numbers = None
        if graph.pan_seg_file_name is not None:
            id_map = read_panoptic_png(dataset.path_of(graph.pan_seg_file_name), size=size)
            numbers = segment_positions(id_map, graph.segment_ids)
    except InputError as error:
        return Example(heading, "", truths, f"no picture: {error}")
    rows = zip(outcome.predicted.tolist(), outcome.scores.tolist(), strict=True)
    triplets = [DrawnTriplet(s, o, predicates[p], score) for (s, o, p), score in rows]
    drawing = SceneDrawing(
        picture=photograph,
        names=names,
        boxes=graph.boxes,
        numbers=numbers,
        triplets=triplets[:_TRIPLETS],
        title=PurePosixPath(graph.file_name).name,
        caption=f"the {min(_TRIPLETS, len(triplets))} most certain triplets",
    )
    return Example(heading, data_uri(draw_scene(drawing, kind="jpg")), truths)


def data_uri(content: bytes, mime: str = "image/jpeg") -> str:
    """Bytes as a ``data:`` address, so that a page needs no other file."""
    return f"data:{mime};base64,{base64.b64encode(content).decode('ascii')}"
