"""Predictions in the format of fair-psgg, the SingleMPO evaluator, read without executing them.

A pickled list of dicts, one an image: ``img_id``; for n objects ``box_label`` [n], counted from 0,
``bboxes`` [n, 4 or 5] or None, and ``mask`` [H, W], the number of the object that a pixel belongs
to, -1 = none, so that there is one mask an object; for r pairs ``pairs`` [r, 2], ``rel_scores``
[r, 1 + P] with "no relation" in column 0, and ``rel_rank`` [r], higher = more important, or None
where the rows are in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from haystack.errors import InputError
from haystack.io.prediction_checks import (
    RepeatedPairs,
    integers,
    located,
    numbers,
    predicted_objects,
    relation_scores,
)
from haystack.io.psg import image_id_text
from haystack.io.restricted_pickle import PickledList
from haystack.scene_graph import MaskRuns, RelationScores
from haystack.vocabulary import Vocabulary

_KEYS = ("img_id", "box_label", "pairs", "rel_scores")


class FairPsgg:
    """Predictions in fair-psgg's format; iterate over it for one ``RelationScores`` an image.

    One image is in memory at a time.

    Args:
        path: the pickle.
        vocabulary: of the annotations.
        repeated_pairs: what becomes of a pair that an image gives again.

    Raises:
        InputError: no such pickle; and, when an image is read, a key is missing or the arrays do
            not fit each other or the vocabulary.
    """

    def __init__(
        self,
        path: str | Path,
        vocabulary: Vocabulary,
        *,
        repeated_pairs: RepeatedPairs = "refuse",
    ) -> None:
        self.path = Path(path)
        self._vocabulary = vocabulary
        self._repeated_pairs: RepeatedPairs = repeated_pairs
        self._entries = PickledList(self.path)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[RelationScores]:
        for number, entry in enumerate(self._entries):
            where = f"entry {number}"
            missing = [key for key in _KEYS if key not in entry] if isinstance(entry, dict) else []
            if missing or not isinstance(entry, dict):
                raise InputError(
                    f"expected a dict with the keys {', '.join(_KEYS)}, got "
                    + (f"none called {missing[0]!r}" if missing else type(entry).__name__),
                    path=self.path,
                    record=where,
                )
            identifier = entry["img_id"]
            if isinstance(identifier, np.integer):
                identifier = int(identifier)
            image_id = image_id_text(identifier, self.path, where)
            with located(self.path, f"image {image_id}"):
                image = self._image(image_id, entry)
            yield image

    def _image(self, image_id: str, entry: dict[str, Any]) -> RelationScores:
        labels = integers(entry["box_label"], "box_label")
        mask = entry.get("mask")
        if mask is not None:
            if not isinstance(mask, np.ndarray) or mask.ndim != 2 or mask.dtype.kind not in "iu":
                raise InputError("expected integers [H, W] under 'mask'")
            mask = MaskRuns.from_id_map(mask, len(labels))
        ranking = entry.get("rel_rank")
        pairs = integers(entry["pairs"], "pairs", 2)
        if ranking is None:  # rows in the order of importance
            ranking = -np.arange(len(pairs), dtype=np.float32)
        return relation_scores(
            image_id,
            pairs,
            numbers(entry["rel_scores"], "rel_scores", 1 + self._vocabulary.num_predicates),
            predicted_objects(labels, entry.get("bboxes"), mask, self._vocabulary.num_objects),
            repeated_pairs=self._repeated_pairs,
            pair_ranking=numbers(ranking, "rel_rank"),
        )


def read_fair_psgg(
    path: str | Path, vocabulary: Vocabulary, *, repeated_pairs: RepeatedPairs = "refuse"
) -> FairPsgg:
    """Open predictions in fair-psgg's format; see :class:`FairPsgg`."""
    return FairPsgg(path, vocabulary, repeated_pairs=repeated_pairs)
