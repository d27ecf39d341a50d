"""Which reader reads which prediction file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from haystack.errors import InputError
from haystack.io.haystack_npy import NoRelationColumn, read_haystack_npy
from haystack.scene_graph import RelationScores
from haystack.vocabulary import Vocabulary


@dataclass(frozen=True)
class PredictionSource:
    """Predictions of a model, one item an image.

    Args:
        images: the predictions; read once, in order.
        from_logits: whether their scores are logits.
        path: the file that they come from, for errors.
    """

    images: Iterable[RelationScores]
    from_logits: bool = False
    path: Path | None = None


Reader = Callable[[Path, Vocabulary, NoRelationColumn], PredictionSource]


def _read_npy(
    path: Path, vocabulary: Vocabulary, no_relation: NoRelationColumn
) -> PredictionSource:
    images = read_haystack_npy(path, vocabulary.num_predicates, no_relation=no_relation)
    return PredictionSource(images, path=path)


def _read_parquet(
    path: Path, vocabulary: Vocabulary, no_relation: NoRelationColumn
) -> PredictionSource:
    from haystack.io.prediction_parquet import read_prediction_parquet  # needs pyarrow

    images = read_prediction_parquet(path)
    if images.predicate_classes != vocabulary.predicate_classes:
        raise InputError(
            "its predicates are not those of the annotations, or in another order: "
            f"{_first_difference(images.predicate_classes, vocabulary.predicate_classes)}",
            path=path,
        )
    return PredictionSource(images, from_logits=images.score_kind == "logit", path=path)


READERS: Mapping[str, Reader] = {".npy": _read_npy, ".parquet": _read_parquet}
"""Reader by file suffix."""


def open_predictions(
    predictions: str | Path | Iterable[RelationScores],
    vocabulary: Vocabulary,
    *,
    no_relation: NoRelationColumn = "last",
) -> PredictionSource:
    """Open a prediction file by its suffix; predictions in memory pass through.

    Args:
        predictions: path of a file, or predictions.
        vocabulary: of the annotations.
        no_relation: where a ``.npy`` with P + 1 scores has "no relation".

    Raises:
        InputError: there is no such file, no reader for its suffix, or it does not fit.
    """
    if not isinstance(predictions, (str, Path)):
        return PredictionSource(predictions)
    path = Path(predictions)
    if not path.is_file():
        raise InputError("there is no such prediction file", path=path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"cannot tell the format from the suffix {path.suffix!r}; readable: "
            + ", ".join(READERS),
            path=path,
        )
    return reader(path, vocabulary, no_relation)


def _first_difference(found: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    for position, (one, other) in enumerate(zip(found, wanted, strict=False)):
        if one != other:
            return f"number {position} is {one!r} there and {other!r} here"
    return f"{len(found)} there and {len(wanted)} here"
