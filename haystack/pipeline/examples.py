"""Known examples of each predicate, as pictures without its name.

For every predicate the paper's annotators saw images with at least one such relation, and found
words of their own for it (Haystack, section 3.1). Examples come from the training annotations,
whose meaning the words shall have, and where those have too few, from answers that a pair is one.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from haystack.errors import InputError
from haystack.files import canonical_json, sha256_text
from haystack.io.panoptic_png import read_panoptic_png
from haystack.pipeline.media import WorkspaceMedia
from haystack.pipeline.pair_picture import draw_pair
from haystack.pipeline.workspace import Workspace
from haystack.scene_graph import SceneGraphDataset

logger = logging.getLogger(__name__)

_KEPT = 200
"""Candidates of a predicate that are looked at; their pictures may be missing, or much alike."""

_FAILURES = 12
"""Pictures that cannot be drawn before a predicate has to do with what there is."""

_SMALL = 0.004
"""Share of the picture below which a segment is hard to make out."""


class Affirmed(NamedTuple):
    """A pair of which people said that it is an example."""

    image_id: str
    image_key: str
    subject: int
    object: int


@dataclass(frozen=True)
class Example:
    """A pair that has a predicate; nothing in it tells which one.

    Args:
        id: twenty hexadecimal digits.
        image_id: its image.
        subject: position of the subject among the image's segments.
        object: position of the object.
        subject_name: class of the subject.
        object_name: class of the object.
        picture: a JPEG with both outlined.
    """

    id: str
    image_id: str
    subject: int
    object: int
    subject_name: str
    object_name: str
    picture: bytes = field(repr=False)


@dataclass(frozen=True)
class _Candidate:
    """A pair that may become an example, if its picture can be drawn."""

    image: str
    subject: int
    object: int
    names: tuple[str, str]
    image_id: str
    draw: Callable[[], bytes]


class Examples:
    """Examples of a workspace's predicates; safe to call from several threads.

    Pictures are drawn when a predicate's examples are first asked for and kept in memory: about
    half a megabyte a predicate.

    Args:
        workspace: names classes and predicates, and segments of its own images.
        annotations: reads the training annotations, once, when the first example is asked for;
            None where there are none. Image files and masks lie where the records say.
        affirmed: gives by predicate what people answered so far.
        count: examples of a predicate.
        seed: of the draw.
    """

    def __init__(
        self,
        workspace: Workspace,
        annotations: Callable[[], SceneGraphDataset] | None,
        affirmed: Callable[[], Mapping[int, Sequence[Affirmed]]] = dict,
        *,
        count: int = 6,
        seed: int = 0,
    ) -> None:
        self._workspace = workspace
        self._read = annotations
        self._affirmed = affirmed
        self._count = count
        self._seed = seed
        self._media = WorkspaceMedia(workspace)
        self._found: dict[int, tuple[Example, ...]] = {}
        self._lock = threading.Lock()

    def predicates(self) -> list[int]:
        """Numbers of the predicates of this campaign that have examples."""
        with self._lock:
            known = {*self._annotated, *self._affirmed()}
        return [number for number in self._workspace.predicate_indices() if number in known]

    def of(self, predicate: int) -> tuple[Example, ...]:
        """Examples of a predicate, each of another image, of different classes if possible.

        They stay the same until the service is started anew, but that answers are added as long
        as there are too few.
        """
        with self._lock:
            found = self._found.get(predicate, ())
            if len(found) < self._count:
                answered = map(self._of_answer, self._affirmed().get(predicate, ())[:_KEPT])
                waiting = [] if found else list(self._annotated.get(predicate, ()))
                found = _varied(found, [*waiting, *answered], self._count)
                self._found[predicate] = found
            return found

    @cached_property
    def _annotated(self) -> Mapping[int, Sequence[_Candidate]]:
        if self._read is None:
            return {}
        dataset = self._read()
        pairs = candidates(dataset, seed=self._seed)
        probed = {rows[0][0] for rows in pairs.values()}
        if not probed:
            return {}
        if not any(dataset.path_of(dataset.graphs[n].file_name).is_file() for n in probed):
            logger.warning(
                "none of the pictures of the training annotations lies where they say, for example "
                "%s; the names page shows examples that people answered only",
                dataset.path_of(dataset.graphs[min(probed)].file_name),
            )
            return {}
        return {
            predicate: [_of_annotation(dataset, *row) for row in rows]
            for predicate, rows in pairs.items()
        }

    def _of_answer(self, pair: Affirmed) -> _Candidate:
        def draw() -> bytes:
            image = self._media.segmented(pair.image_key)
            segments = (image.segments[pair.subject].id, image.segments[pair.object].id)
            content = self._workspace.source.read(pair.image_key)
            return draw_pair(content, image.id_map(), segments, path=pair.image_key)

        names = self._media.class_names(pair.image_key, pair.subject, pair.object)
        return _Candidate(pair.image_key, pair.subject, pair.object, names, pair.image_id, draw)


def candidates(
    dataset: SceneGraphDataset, *, seed: int = 0, limit: int = _KEPT
) -> dict[int, list[tuple[int, int, int]]]:
    """Annotated pairs of each predicate, those that show it best first, else in a drawn order.

    Best are pairs without a second predicate, which words would have to be told from, and of
    segments that are large enough to be made out. Faulty segments are left out.

    Args:
        dataset: annotations whose pictures and masks exist.
        seed: of the draw.
        limit: pairs of a predicate.

    Returns:
        Predicate -> (position of the graph, subject, object).
    """
    found: dict[int, list[tuple[bool, bool, tuple[int, int, int]]]] = defaultdict(list)
    for number, graph in enumerate(dataset.graphs):
        if graph.pan_seg_file_name is None:
            continue
        faulty = dataset.faulty_segments.get(graph.image_id, ())
        predicates: dict[tuple[int, int], set[int]] = defaultdict(set)
        for subject, target, predicate in graph.relations.tolist():
            if subject != target and subject not in faulty and target not in faulty:
                predicates[subject, target].add(predicate)
        for (subject, target), several in predicates.items():
            areas = [graph.segments[position].area for position in (subject, target)]
            is_small = min(areas) < _SMALL * graph.height * graph.width
            for predicate in several:
                pair = (number, subject, target)
                found[predicate].append((len(several) > 1, is_small, pair))
    ordered = {}
    for predicate, rows in sorted(found.items()):
        order = np.random.default_rng([seed, predicate]).permutation(len(rows)).tolist()
        drawn = sorted((rows[position] for position in order), key=lambda row: row[:2])
        ordered[predicate] = [pair for *_, pair in drawn[:limit]]
    return ordered


def _of_annotation(
    dataset: SceneGraphDataset, number: int, subject: int, target: int
) -> _Candidate:
    graph = dataset.graphs[number]
    pair = (graph.segments[subject], graph.segments[target])
    classes = dataset.vocabulary.object_classes

    def draw() -> bytes:
        file = dataset.path_of(graph.file_name)
        try:
            content = file.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read the image: {error.strerror}", path=file) from error
        masks = dataset.path_of(str(graph.pan_seg_file_name))
        id_map = read_panoptic_png(masks, size=(graph.height, graph.width))
        return draw_pair(content, id_map, (pair[0].id, pair[1].id), path=str(file))

    names = (classes[pair[0].category], classes[pair[1].category])
    return _Candidate(graph.file_name, subject, target, names, graph.image_id, draw)


def _varied(
    found: Sequence[Example], waiting: Sequence[_Candidate], count: int
) -> tuple[Example, ...]:
    """More examples, until there are enough: an image once, new pairs of classes first."""
    chosen = list(found)
    images = {example.image_id for example in found}
    classes = {(example.subject_name, example.object_name) for example in found}
    failures = 0
    for any_classes in (False, True):
        for candidate in waiting:
            if len(chosen) == count or failures == _FAILURES:
                return tuple(chosen)
            if candidate.image_id in images or (candidate.names in classes and not any_classes):
                continue
            try:
                picture = candidate.draw()
            except InputError as error:
                logger.warning("an example cannot be shown: %s", error)
                failures += 1
                continue
            images.add(candidate.image_id)
            classes.add(candidate.names)
            place = (candidate.image, candidate.subject, candidate.object)
            digest = sha256_text(canonical_json(place))[:20]
            pair = (candidate.image_id, candidate.subject, candidate.object)
            chosen.append(Example(digest, *pair, *candidate.names, picture))
    return tuple(chosen)
