"""The verb ``predict``: scene graphs of pictures, or scores for an annotated data set."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack.cli.outcome import OK, QUARANTINED, Outcome
from haystack.cli.progress import Progress, Watched
from haystack.errors import InputError

if TYPE_CHECKING:
    from haystack.io.images import Content
    from haystack.models.relation.protocol import RelationModel
    from haystack.pipeline.config import SegmentConfig
    from haystack.pipeline.predict import PredictedImage
    from haystack.pipeline.scene_graphs import Written
    from haystack.pipeline.segmenters.base import Segmenter
    from haystack.scene_graph import SceneGraphDataset
    from haystack.vocabulary import Vocabulary

_TABLES = (".parquet", ".npy")
_OTHER_FILES = (".json", ".jsonl", ".csv", ".txt", ".npz", ".pkl", ".png", ".svg")
_SHOWN = 5  # quarantined images named in the text


def add_verbs(verbs: Any) -> None:
    """Declare the verb."""
    verb = verbs.add_parser(
        "predict", help="scene graphs of pictures, or of annotated images", description=_HELP
    )
    verb.add_argument(
        "images",
        nargs="+",
        metavar="IMAGES",
        help="pictures, a folder of them, a .tar, or annotations: a PSG JSON or psg-mini",
    )
    verb.add_argument(
        "--model",
        required=True,
        help="model.safetensors, its folder, or a class of your own: package.module:factory or "
        "file.py:Class",
    )
    verb.add_argument(
        "--segments",
        help="what is in the pictures: PSG JSON, COCO panoptic JSON, COCO detection results, or a "
        "folder of panoptic PNGs with a JSON each",
    )
    verb.add_argument(
        "--segmenter",
        nargs="+",
        metavar=("KIND", "key=value"),
        help="what finds it instead: maskdino, detectron2, transformers or yolo-seg, and settings "
        "like those of the stage segment, for example: --segmenter maskdino weights=FILE.pth",
    )
    verb.add_argument(
        "--out",
        type=Path,
        default=Path("scene-graphs"),
        help="folder for JSON, Parquet, masks and pictures (default: scene-graphs); or a file that "
        "ends in .parquet or .npy, for the scores alone",
    )
    verb.add_argument("--top", type=int, default=10, metavar="K", help="triplets an image shows")
    verb.add_argument(
        "--min-score",
        type=float,
        default=0.01,
        metavar="S",
        help="show none below this score (default: 0.01)",
    )
    verb.add_argument(
        "--pictures",
        choices=("jpg", "png", "svg"),
        default="jpg",
        help="their format (default: jpg; png is lossless and three times as large)",
    )
    verb.add_argument("--no-pictures", action="store_true", help="draw none")
    verb.add_argument(
        "--overlap",
        choices=("boxes", "masks"),
        help="pairs whose boxes (or masks) do not meet count as not related",
    )
    verb.add_argument(
        "--guess-classes",
        action="store_true",
        help="the model classifies the segments itself: SGCls of annotated images, SGDet of "
        "detections",
    )
    verb.add_argument(
        "--split",
        choices=("train", "test", "all"),
        default="all",
        help="of annotated images (default: all)",
    )
    verb.add_argument("--device", default="cpu")
    verb.set_defaults(run=_predict)


_HELP = (
    "Predict scene graphs. Segments of pictures come from --segments or --segmenter; annotated "
    "images bring their own, and are scored as PredCls."
)


def _predict(args: argparse.Namespace) -> Outcome:
    if args.top < 1:
        raise InputError(f"expected --top of at least 1, got {args.top}")
    annotated = _is_annotations(args.images)
    if annotated and (args.segments or args.segmenter):
        raise InputError(
            "annotations bring their own segments; give the pictures' folder instead, or leave out "
            f"{'--segments' if args.segments else '--segmenter'}",
            path=args.images[0],
        )
    if args.out.suffix in _TABLES:
        return _scores_alone(args, annotated=annotated)
    if args.out.is_file() or args.out.suffix in _OTHER_FILES:
        raise InputError(
            "expected a folder, or a name that ends in .parquet or .npy; this names a file",
            path=args.out,
        )
    from haystack.pipeline.scene_graphs import GraphOutput, write_quarantine, write_scene_graphs

    quarantined: list[tuple[str, str]] = []
    work = _annotated(args) if annotated else _pictures(args)
    output = GraphOutput(
        args.out, args.top, args.min_score, None if args.no_pictures else args.pictures
    )
    images = Watched(work.images(quarantined), Progress("predict", "image", work.total))
    written = write_scene_graphs(images, output, work.vocabulary, file_of=work.file_of)
    write_quarantine(args.out, quarantined)
    return _outcome(args, written, quarantined, work.note)


def _scores_alone(args: argparse.Namespace, *, annotated: bool) -> Outcome:
    from haystack.io.haystack_npy import write_haystack_npy
    from haystack.io.prediction_parquet import write_prediction_parquet
    from haystack.pipeline.scene_graphs import Written

    quarantined: list[tuple[str, str]] = []
    if annotated and not args.guess_classes:
        from haystack.models.relation.predict import predict_dataset

        dataset, model = _dataset_and_model(args)
        vocabulary = dataset.vocabulary
        scores = predict_dataset(model, dataset, args.split)
        total: int | None = len(dataset.split(args.split))
        note = _split_note(dataset, args.split)
    else:
        if args.out.suffix == ".npy":
            raise InputError(
                "a .npy file cannot hold the objects beside the scores; write .parquet",
                path=args.out,
            )
        work = _annotated(args) if annotated else _pictures(args)
        vocabulary, total, note = work.vocabulary, work.total, work.note
        scores = (image.scores for image in work.images(quarantined))
    counted = Watched(scores, Progress("predict", "image", total))
    if args.out.suffix == ".npy":
        write_haystack_npy(counted, args.out)
    else:
        write_prediction_parquet(counted, args.out, vocabulary.predicate_classes)
    return _outcome(args, Written(counted.count), quarantined, note)


def _outcome(
    args: argparse.Namespace, written: Written, quarantined: list[tuple[str, str]], note: str
) -> Outcome:
    lines = [f"wrote {written.images} images to {args.out}", *([note] if note else [])]
    if written.without_pair:
        lines.append(
            f"in {written.without_pair} of them there are fewer than two segments to relate"
        )
    if written.without_triplet:
        lines.append(
            f"in {written.without_triplet} of them no triplet scores {args.min_score:g} or more; "
            "--min-score sets this bound"
        )
    if quarantined:
        lines.append(f"{len(quarantined)} images could not be used:")
        lines += [f"  {key}: {reason}" for key, reason in quarantined[:_SHOWN]]
        if len(quarantined) > _SHOWN:
            where = "" if args.out.suffix in _TABLES else f"; all in {args.out}/quarantine.jsonl"
            lines.append(f"  and {len(quarantined) - _SHOWN} more{where}")
    data = {
        "out": args.out,
        **written._asdict(),
        "quarantined": [{"input": key, "reason": reason} for key, reason in quarantined],
    }
    return Outcome("\n".join(lines), data, QUARANTINED if quarantined else OK)


class _Work:
    """Images, their segments, and the model that relates them."""

    def __init__(
        self,
        model: RelationModel,
        vocabulary: Vocabulary,
        segmenter: Segmenter,
        read: Callable[[], Iterator[tuple[str, Content]]],
        file_of: Callable[[str], str],
        *,
        as_objects: bool,
        guess_classes: bool,
        total: int | None = None,
        note: str = "",
    ) -> None:
        self.vocabulary, self.file_of, self.total, self.note = vocabulary, file_of, total, note
        self._model, self._segmenter, self._read = model, segmenter, read
        self._as_objects, self._guess_classes = as_objects, guess_classes

    def images(self, quarantined: list[tuple[str, str]]) -> Iterator[PredictedImage]:
        from haystack.pipeline.predict import predict_images

        return predict_images(
            self._read(),
            self._segmenter,
            self._model,
            self.vocabulary,
            set_aside=lambda key, reason: quarantined.append((key, reason)),
            as_objects=self._as_objects,
            guess_classes=self._guess_classes,
        )


def _pictures(args: argparse.Namespace) -> _Work:
    """Pictures with the segments of ``--segments`` or ``--segmenter``."""
    from haystack.io.images import open_pictures
    from haystack.models.relation.references import ModelReference
    from haystack.pipeline.segmenters.factory import open_segmenter

    settings = _segment_settings(args)
    source, root = open_pictures(args.images)
    model, vocabulary = ModelReference.parse(args.model).load(device=args.device)
    keys = source.keys()
    segmenter = open_segmenter(settings, vocabulary, keys)

    def read() -> Iterator[tuple[str, Content]]:
        for shard in source.shards():
            yield from source.iterate(shard)

    def file_of(key: str) -> str:
        return key if root is None else Path(os.path.relpath(root / key, args.out)).as_posix()

    return _Work(
        _filtered(model, args),
        vocabulary,
        segmenter,
        read,
        file_of,
        as_objects=True,
        guess_classes=args.guess_classes,
        total=None if keys is None else len(keys),
    )


def _segment_settings(args: argparse.Namespace) -> SegmentConfig:
    from haystack.config import load_config
    from haystack.pipeline.config import SegmentConfig

    if args.segments and args.segmenter:
        raise InputError("give --segments or --segmenter, not both")
    if args.segments:
        return SegmentConfig(annotations=args.segments)
    if not args.segmenter:
        raise InputError(
            "pictures need --segments, which says what is in them (a PSG or COCO panoptic JSON, "
            "COCO detection results, or a folder of panoptic PNGs), or --segmenter, which finds it",
            path=args.images[0],
        )
    kind, *settings = args.segmenter
    for setting in settings:
        if "=" not in setting:
            raise InputError(
                f"expected key=value after --segmenter {kind}, got {setting!r}; images come first"
            )
    given = [setting.removeprefix("segment.") for setting in settings]
    return load_config(SegmentConfig(device=args.device), None, [f"kind={kind}", *given])


def _annotated(args: argparse.Namespace) -> _Work:
    """Annotated images with their own segments, to which pairs refer."""
    from haystack.pipeline.segmenters.precomputed import PrecomputedSegmenter

    dataset, model = _dataset_and_model(args)

    def read() -> Iterator[tuple[str, Content]]:
        for graph in dataset.split(args.split):
            try:
                yield graph.file_name, dataset.path_of(graph.file_name).read_bytes()
            except OSError as error:
                yield graph.file_name, InputError(f"cannot read the picture: {error.strerror}")

    def file_of(key: str) -> str:
        return Path(os.path.relpath(dataset.path_of(key), args.out)).as_posix()

    segmenter = PrecomputedSegmenter(dataset)
    return _Work(
        model,
        dataset.vocabulary,
        segmenter,
        read,
        file_of,
        as_objects=False,
        guess_classes=args.guess_classes,
        total=len(dataset.split(args.split)),
        note=_split_note(dataset, args.split),
    )


def _split_note(dataset: SceneGraphDataset, split: str) -> str:
    """Which of the images ``evaluate`` looks at, unless told otherwise."""
    tests = len(dataset.split("test"))
    if split == "test" or not dataset.test_image_ids or tests == len(dataset.graphs):
        return ""
    known = tests if split == "all" else 0
    return (
        f"{known} of them are test images, which are what haystack evaluate grades unless "
        f"--split {split} tells it otherwise"
    )


def _dataset_and_model(args: argparse.Namespace) -> tuple[SceneGraphDataset, RelationModel]:
    from haystack.io import read_psg
    from haystack.models.relation.references import ModelReference

    dataset = read_psg(args.images[0])
    model, _ = ModelReference.parse(args.model).load(dataset.vocabulary, args.device)
    return dataset, _filtered(model, args)


def _filtered(model: RelationModel, args: argparse.Namespace) -> RelationModel:
    if args.overlap is None:
        return model
    from haystack.models.relation.overlap import OverlapFilter

    return OverlapFilter(model, args.overlap)


def _is_annotations(images: list[str]) -> bool:
    from haystack.io.datasets import BUNDLED

    named = [path for path in images if path in BUNDLED or path.lower().endswith(".json")]
    if named and len(images) > 1:
        raise InputError("give one annotation file, or pictures", path=named[0])
    return bool(named)
