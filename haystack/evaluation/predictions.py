"""Which reader reads which prediction file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from haystack.errors import InputError
from haystack.io.haystack_npy import NoRelationColumn, read_haystack_npy
from haystack.io.prediction_checks import RepeatedPairs
from haystack.scene_graph import Prediction, SceneGraphDataset
from haystack.vocabulary import Vocabulary


@dataclass(frozen=True)
class PredictionSource:
    """Predictions of a model, one item an image.

    Args:
        images: the predictions; read once, in order.
        from_logits: whether their scores are logits.
        path: the file that they come from, for errors.
    """

    images: Iterable[Prediction]
    from_logits: bool = False
    path: Path | None = None


@dataclass(frozen=True)
class ReadingOptions:
    """What a reader may need besides the file.

    Args:
        vocabulary: of the annotations.
        dataset: the annotations; None where only the vocabulary is known.
        no_relation: where a ``.npy`` with P + 1 scores has "no relation".
        repeated_pairs: what becomes of a pair that an image of a pickle gives again.
    """

    vocabulary: Vocabulary
    dataset: SceneGraphDataset | None = None
    no_relation: NoRelationColumn = "last"
    repeated_pairs: RepeatedPairs = "refuse"


Reader = Callable[[Path, ReadingOptions], PredictionSource]


def _read_npy(path: Path, options: ReadingOptions) -> PredictionSource:
    images = read_haystack_npy(
        path, options.vocabulary.num_predicates, no_relation=options.no_relation
    )
    return PredictionSource(images, path=path)


def _read_parquet(path: Path, options: ReadingOptions) -> PredictionSource:
    from haystack.io.prediction_parquet import read_prediction_parquet  # needs pyarrow

    images = read_prediction_parquet(path)
    wanted = options.vocabulary.predicate_classes
    if images.predicate_classes != wanted:
        raise InputError(
            "its predicates are not those of the annotations, or in another order: "
            f"{_first_difference(images.predicate_classes, wanted)}",
            path=path,
        )
    return PredictionSource(images, from_logits=images.score_kind == "logit", path=path)


def _read_sgbench(path: Path, options: ReadingOptions) -> PredictionSource:
    from haystack.io.sgbench import read_sgbench

    return PredictionSource(read_sgbench(path, options.vocabulary), path=path)


def _read_pickle(path: Path, options: ReadingOptions) -> PredictionSource:
    """OpenPSG's result or fair-psgg's predictions, by the first entry."""
    from haystack.io.fair_psgg import read_fair_psgg
    from haystack.io.openpsg_result import read_openpsg_result
    from haystack.io.restricted_pickle import PickledList, Record

    first = next(iter(PickledList(path)), None)
    if isinstance(first, dict):
        entries = read_fair_psgg(path, options.vocabulary, repeated_pairs=options.repeated_pairs)
        return PredictionSource(entries, path=path)
    if not isinstance(first, Record):
        raise InputError(
            "expected OpenPSG's results or fair-psgg's dicts, got "
            + ("an empty list" if first is None else f"a list of {type(first).__name__}"),
            path=path,
        )
    if options.dataset is None:
        raise InputError(
            "OpenPSG's results name no images; open them together with the annotations", path=path
        )
    results = read_openpsg_result(path, options.dataset, repeated_pairs=options.repeated_pairs)
    return PredictionSource(results, from_logits=results.from_logits, path=path)


READERS: Mapping[str, Reader] = {
    ".npy": _read_npy,
    ".parquet": _read_parquet,
    ".json": _read_sgbench,
    ".zip": _read_sgbench,
    ".pkl": _read_pickle,
    ".pickle": _read_pickle,
}
"""Reader by file suffix."""

_BEGINNINGS = {
    b"\x93NUMPY": ".npy",
    b"PAR1": ".parquet",
    b"{": ".json",
    b"PK\x03\x04": ".zip",
    b"\x80": ".pkl",
}
"""How a file of each kind begins; says what it is where the suffix does not."""


def open_predictions(
    predictions: str | Path | Iterable[Prediction],
    vocabulary: Vocabulary,
    *,
    dataset: SceneGraphDataset | None = None,
    no_relation: NoRelationColumn = "last",
    repeated_pairs: RepeatedPairs = "refuse",
) -> PredictionSource:
    """Open a prediction file; predictions in memory pass through.

    The suffix tells the format, and where it is another one the first bytes do. SGBench's files
    hold :class:`~haystack.scene_graph.RankedTriplets`, all others
    :class:`~haystack.scene_graph.RelationScores`.

    Args:
        predictions: path of a file, or predictions.
        vocabulary: of the annotations.
        dataset: the annotations; only OpenPSG's results, which name no images, need them.
        no_relation: where a ``.npy`` with P + 1 scores has "no relation".
        repeated_pairs: what becomes of a pair that an image of a pickle gives again.

    Raises:
        InputError: there is no such file, no reader for it, or it does not fit.
    """
    if not isinstance(predictions, (str, Path)):
        if not isinstance(predictions, Iterable):
            raise InputError(
                f"expected a file of predictions, or predictions, got {type(predictions).__name__}"
            )
        return PredictionSource(predictions)
    path = Path(predictions)
    if not path.is_file():
        raise InputError("there is no such prediction file", path=path)
    reader = READERS.get(path.suffix.lower()) or READERS.get(_suffix_by_content(path))
    if reader is None:
        raise InputError(
            f"cannot tell the format from the suffix {path.suffix!r} or from the first bytes; "
            "readable: " + ", ".join(READERS),
            path=path,
        )
    return reader(path, ReadingOptions(vocabulary, dataset, no_relation, repeated_pairs))


def _suffix_by_content(path: Path) -> str:
    with path.open("rb") as stream:
        begin = stream.read(64).lstrip()
    return next((suffix for magic, suffix in _BEGINNINGS.items() if begin.startswith(magic)), "")


def _first_difference(found: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    for position, (one, other) in enumerate(zip(found, wanted, strict=False)):
        if one != other:
            return f"number {position} is {one!r} there and {other!r} here"
    return f"{len(found)} there and {len(wanted)} here"
