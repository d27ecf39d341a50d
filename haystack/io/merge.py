"""Append annotations to a PSG file: the utility that the Haystack paper promises (section 3.2)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np

from haystack.errors import InputError
from haystack.scene_graph import (
    NO_RELATION,
    SceneGraph,
    SceneGraphDataset,
    Triplets,
    as_triplets,
)
from haystack.vocabulary import Vocabulary

OnConflict = Literal["error", "base", "addition"]


class MergeReport(TypedDict):
    """What a merge did: images and rows added, conflicts met, conflicting triples by image.

    ``kept_in_training``: training images of the base that the addition lists as test images.
    """

    new_images: int
    merged_images: int
    added_relations: int
    added_negatives: int
    conflicts: int
    kept_in_training: int
    conflicting: dict[str, list[list[int]]]


def merge_psg(
    base: SceneGraphDataset,
    addition: SceneGraphDataset,
    *,
    on_conflict: OnConflict = "error",
    prefix_ids: str = "",
    prefix_images: str = "",
    prefix_masks: str = "",
) -> tuple[SceneGraphDataset, MergeReport]:
    """``base`` with the images and labels of ``addition`` appended; nothing is dropped.

    An image of both is merged when size and segments (ids, classes, order) agree: its rows are
    united, each kept once. Images that have negatives only stay. An image of the base keeps the
    base's split; new ones bring their own. Ids are text on both sides, so that integer and text
    ids of the same image meet.

    Args:
        base: the data set to append to.
        addition: the data set to append, with the same vocabulary.
        on_conflict: what to do where one side affirms a triple that the other denies:
            ``error`` refuses, ``base`` or ``addition`` lets that side win.
        prefix_ids: put before each image id of ``addition``, to keep foreign ids apart.
        prefix_images: put before each image file name of ``addition``, whose folder is another.
        prefix_masks: put before each panoptic PNG's name of ``addition``.

    Returns:
        The merged data set (its root is the base's) and the report.

    Raises:
        InputError: vocabularies differ, an id stands for two different images, or a conflict.
    """
    base.vocabulary.require_same(
        addition.vocabulary,
        own="the base",
        others="the addition",
        advice="only equal vocabularies merge",
    )
    graphs = base.by_id()
    report = MergeReport(
        new_images=0,
        merged_images=0,
        added_relations=0,
        added_negatives=0,
        conflicts=0,
        kept_in_training=0,
        conflicting={},
    )
    for graph in addition.graphs:
        graph = _prefixed(graph, prefix_ids, prefix_images, prefix_masks)
        known = graphs.get(graph.image_id)
        if known is None:
            report["new_images"] += 1
            report["added_relations"] += len(graph.relations)
            report["added_negatives"] += len(graph.neg_relations)
            graphs[graph.image_id] = graph
            continue
        _compare_images(known, graph)
        graphs[graph.image_id] = _merge_rows(known, graph, on_conflict, report, base.vocabulary)
        report["merged_images"] += 1
    faulty = {key: set(value) for key, value in base.faulty_segments.items()}
    for image_id, positions in addition.faulty_segments.items():
        faulty.setdefault(prefix_ids + image_id, set()).update(positions)
    known_before = {graph.image_id for graph in base.graphs}
    test_ids = dict.fromkeys(base.test_image_ids)
    for image_id in addition.test_image_ids:
        image_id = prefix_ids + image_id
        if image_id in known_before and image_id not in test_ids:
            report["kept_in_training"] += 1
        else:
            test_ids[image_id] = None
    merged = replace(
        base,
        graphs=tuple(graphs.values()),
        test_image_ids=tuple(test_ids),
        faulty_segments={key: tuple(sorted(value)) for key, value in faulty.items()},
    )
    return merged, report


def relocated(
    dataset: SceneGraphDataset, folder: str | Path, *, images: bool = True, masks: bool = True
) -> SceneGraphDataset:
    """``dataset`` with its file names relative to another folder, as they must be if moved there.

    Only names that lead to a file now are rewritten. Others (PSG's ``train2017/...``, which are
    relative to a folder of images that the file does not know) stay as they are.

    Args:
        dataset: read from a file, so that its root is known.
        folder: where the annotation file will lie.
        images: rewrite the names of images.
        masks: rewrite the names of panoptic PNGs.
    """

    def moved(name: str) -> str:
        path = dataset.path_of(name)
        return Path(os.path.relpath(path, folder)).as_posix() if path.is_file() else name

    def move(graph: SceneGraph) -> SceneGraph:
        mask = graph.pan_seg_file_name
        return replace(
            graph,
            file_name=moved(graph.file_name) if images else graph.file_name,
            pan_seg_file_name=moved(mask) if masks and mask is not None else mask,
        )

    graphs = tuple(move(graph) for graph in dataset.graphs)
    return replace(dataset, graphs=graphs, root=Path(folder))


def _prefixed(
    graph: SceneGraph, prefix_ids: str, prefix_images: str, prefix_masks: str
) -> SceneGraph:
    masks = graph.pan_seg_file_name
    return replace(
        graph,
        image_id=prefix_ids + graph.image_id,
        file_name=prefix_images + graph.file_name,
        pan_seg_file_name=None if masks is None else prefix_masks + masks,
    )


def _compare_images(known: SceneGraph, graph: SceneGraph) -> None:
    def identity(image: SceneGraph) -> tuple[object, ...]:
        segments = tuple((segment.id, segment.category) for segment in image.segments)
        return image.height, image.width, segments

    if identity(known) != identity(graph):
        raise InputError(
            "both files have this image id, with another size or other segments, so they are two "
            "images (or two segmentations of one); keep them apart with --prefix-ids",
            record=f"image {graph.image_id}",
        )


def _merge_rows(
    known: SceneGraph,
    graph: SceneGraph,
    on_conflict: OnConflict,
    report: MergeReport,
    vocabulary: Vocabulary,
) -> SceneGraph:
    conflicts = _conflicts(known, graph)
    if conflicts:
        report["conflicts"] += len(conflicts)
        report["conflicting"][graph.image_id] = [list(row) for row in sorted(conflicts)]
        if on_conflict == "error":
            told = "; ".join(_in_words(row, known, graph, vocabulary) for row in sorted(conflicts))
            raise InputError(
                f"the files contradict each other: {told}; correct one, or choose the winner with "
                "--on-conflict base or --on-conflict addition",
                record=f"image {graph.image_id}",
            )
        if on_conflict == "base":
            graph = _without(graph, conflicts)
        else:
            known = _without(known, conflicts)
    relations = _united(known.relations, graph.relations)
    negatives = _united(known.neg_relations, graph.neg_relations)
    report["added_relations"] += len(relations) - len(known.relations)
    report["added_negatives"] += len(negatives) - len(known.neg_relations)
    return replace(known, relations=relations, neg_relations=negatives)


def _conflicts(first: SceneGraph, second: SceneGraph) -> set[tuple[int, int, int]]:
    """Triples that one side affirms and the other denies, by themselves or by "no relation"."""
    found = set()
    for affirming, denying in ((first, second), (second, first)):
        denied = {tuple(row) for row in denying.neg_relations.tolist()}
        for subject, target, predicate in affirming.relations.tolist():
            if (subject, target, predicate) in denied or (subject, target, NO_RELATION) in denied:
                found.add((subject, target, predicate))
    return found


def _in_words(
    row: tuple[int, int, int], base: SceneGraph, addition: SceneGraph, vocabulary: Vocabulary
) -> str:
    """One conflicting triple with names, and what each side says of it."""

    def said(graph: SceneGraph) -> str:
        if list(row) in graph.relations.tolist():
            return "yes"
        return "no" if list(row) in graph.neg_relations.tolist() else "'no relation'"

    subject, target, predicate = row
    names = [vocabulary.object_classes[base.segments[i].category] for i in (subject, target)]
    return (
        f"{names[0]} '{vocabulary.predicate_classes[predicate]}' {names[1]} {list(row)} is "
        f"{said(base)} in the base and {said(addition)} in the addition"
    )


def _without(graph: SceneGraph, triples: set[tuple[int, int, int]]) -> SceneGraph:
    """``graph`` without what it says of ``triples``; a "no relation" row of such a pair goes."""
    pairs = {row[:2] for row in triples}
    return replace(
        graph,
        relations=as_triplets(row for row in graph.relations.tolist() if tuple(row) not in triples),
        neg_relations=as_triplets(
            row
            for row in graph.neg_relations.tolist()
            if tuple(row) not in triples and not (row[2] == NO_RELATION and tuple(row[:2]) in pairs)
        ),
    )


def _united(first: Triplets, second: Triplets) -> Triplets:
    """All rows of ``first`` as they are, then those of ``second`` that are new, each once."""
    seen: Mapping[tuple[int, ...], None] = dict.fromkeys(map(tuple, first.tolist()))
    new = [row for row in dict.fromkeys(map(tuple, second.tolist())) if row not in seen]
    return np.concatenate([first, as_triplets(new)])
