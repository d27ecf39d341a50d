"""Answers from an annotation file: what a person who knows the ground truth would say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from haystack.errors import InputError
from haystack.scene_graph import NO_RELATION, SceneGraphDataset, segments_identity

if TYPE_CHECKING:
    from haystack.annotate.records import Answer, Verdict
    from haystack.pipeline.workspace import Workspace
    from haystack.scene_graph import SceneGraph, Segment


def check_segments(
    segments: Mapping[str, Sequence[Segment]], truth: Mapping[str, SceneGraph]
) -> None:
    """Refuse a ground truth that speaks of other segments than the campaign asks about.

    Args:
        segments: image id -> segments in the workspace.
        truth: image id -> annotations.

    Raises:
        InputError: no image in common, or an image whose segments differ.
    """
    shared = segments.keys() & truth.keys()
    for image_id in sorted(shared):
        if segments_identity(segments[image_id]) != segments_identity(truth[image_id].segments):
            raise InputError(
                "the annotations describe other segments (ids, classes or order) than the "
                "workspace, so their answers do not fit its questions; segment with these "
                "annotations (segment.annotations) or answer by hand",
                record=f"image {image_id}",
            )
    if not shared:
        raise InputError("the annotations and the workspace have no image in common")


def check_answered(workspace: Workspace, answers: Iterable[Answer]) -> None:
    """Refuse answers that were given on other segments than the images have now.

    Raises:
        InputError: names the first such image.
    """
    then = {answer.proposal.image_id: answer.proposal.segments for answer in answers}
    for image_id, segments in workspace.segments_of(then).items():
        if then[image_id] not in ("", segments_identity(segments)):
            raise InputError(
                "it was answered on other segments (ids, classes or order) than it has now, so the "
                "answers would land on other objects; segment as before, or use a new database",
                record=f"image {image_id}",
            )


class Asked(Protocol):
    """What is asked: the pipeline's proposals and the annotation store's are both such."""

    @property
    def image_id(self) -> str:
        """The image."""

    @property
    def subject(self) -> int:
        """Position of the subject among the image's segments."""

    @property
    def object(self) -> int:
        """Position of the object."""

    @property
    def predicate(self) -> int:
        """Number of the predicate."""


def truth_from(dataset: SceneGraphDataset) -> Callable[[Asked], Verdict | None]:
    """A function that answers proposals; None where the annotations say nothing of the triple."""
    affirmed: set[tuple[str, int, int, int]] = set()
    denied: set[tuple[str, int, int, int]] = set()
    unrelated: set[tuple[str, int, int]] = set()
    for graph in dataset.graphs:
        for subject, target, predicate in graph.relations.tolist():
            affirmed.add((graph.image_id, subject, target, predicate))
        for subject, target, predicate in graph.neg_relations.tolist():
            if predicate == NO_RELATION:
                unrelated.add((graph.image_id, subject, target))
            else:
                denied.add((graph.image_id, subject, target, predicate))
    faulty = {
        (image_id, position)
        for image_id, positions in dataset.faulty_segments.items()
        for position in positions
    }

    def answer(asked: Asked) -> Verdict | None:
        pair = (asked.image_id, asked.subject, asked.object)
        if (asked.image_id, asked.subject) in faulty:
            return "subject_faulty"
        if (asked.image_id, asked.object) in faulty:
            return "object_faulty"
        if (*pair, asked.predicate) in affirmed:
            return "correct"
        if (*pair, asked.predicate) in denied:
            return "incorrect"
        return "no_relation" if pair in unrelated else None

    return answer
