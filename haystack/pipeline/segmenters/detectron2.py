"""Segments that a panoptic model of detectron2 finds, MaskDINO's original included.

detectron2 is no dependency: it is on no package index, and is imported when this segmenter is
chosen. ``found_in`` and ``panoptic_classes`` need nothing of it but what it returns.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from haystack import files, weights
from haystack.errors import HaystackError, InputError, MissingDependencyError
from haystack.io.class_numbers import of_names
from haystack.pipeline.segmenters.model import FoundSegment, FoundSegments, ModelSegmenter
from haystack.vocabulary import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

    from haystack.pipeline.config import SegmentConfig

INSTALL = (
    "pip install --no-build-isolation 'git+https://github.com/facebookresearch/detectron2.git'"
)
"""It must be built where PyTorch is installed already, hence without isolation."""

_IN_ITS_FILE = ("precision", "compile", "score_threshold", "overlap_threshold")
_SHOWN = 5  # missing tensors named in an error


class Detectron2Segmenter(ModelSegmenter):
    """A model of detectron2 as its configuration file describes it, one picture at a time.

    Args:
        config: ``config``, detectron2's file; ``weights``; ``setup``, what the configuration needs
            before the file is read.
        vocabulary: must have the classes of the first data set of ``DATASETS.TEST``.

    Raises:
        MissingDependencyError: detectron2 is not installed.
        InputError: no such files, settings that belong into detectron2's own file, a data set
            without names, or a class that the vocabulary lacks.
    """

    def __init__(self, config: SegmentConfig, vocabulary: Vocabulary) -> None:
        plain = type(config)()
        for key in _IN_ITS_FILE:
            if getattr(config, key) != getattr(plain, key):
                raise InputError(
                    f"segment.{key} has no meaning for segment.kind=detectron2; what its models do "
                    "is set in the file of segment.config"
                )
        self._cfg = _configuration(config)
        self._weights = _weight_file(config.weights)
        super().__init__(config, vocabulary, panoptic_classes(_metadata(self._cfg), vocabulary))

    def fingerprint(self) -> dict[str, Any]:
        """Hash of the whole configuration and of the weights."""
        return {
            "segmenter": "detectron2",
            "config": files.sha256_text(self._cfg.dump()),
            "weights": files.sha256_file(self._weights),
        }

    def shape(self, picture: Image.Image) -> Hashable:
        """Its size."""
        return picture.size

    def load(self) -> Any:
        """See ``ModelSegmenter``; every tensor of the model must be in the file."""
        from detectron2.engine import DefaultPredictor

        from haystack.devices import usable_device

        cfg = self._cfg.clone()
        cfg.MODEL.DEVICE = str(usable_device(self._config.device))
        # Left to detectron2, a file would be unpickled, and gaps in it would stay random numbers.
        cfg.MODEL.WEIGHTS = ""
        with redirect_stdout(sys.stderr):  # MaskDINO prints its losses; stdout is for results
            predictor = DefaultPredictor(cfg)
        try:
            report = predictor.model.load_state_dict(_tensors(self._weights), strict=False)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise InputError(f"not this model's weights: {reason}", path=self._weights) from error
        if report.missing_keys:
            raise InputError(
                f"not this model's weights: {len(report.missing_keys)} of its tensors are missing, "
                f"such as {', '.join(report.missing_keys[:_SHOWN])}",
                path=self._weights,
            )
        return predictor

    def find(self, pictures: Sequence[Image.Image]) -> list[FoundSegments]:
        """See ``ModelSegmenter``."""
        # Its predictor takes blue, green, red, and turns them itself where the model wants RGB.
        return [found_in(self.model(np.asarray(picture)[:, :, ::-1])) for picture in pictures]


def found_in(output: Mapping[str, Any]) -> FoundSegments:
    """What a panoptic model of detectron2 says of a picture.

    Args:
        output: its ``panoptic_seg`` is an id map [H, W], as a tensor, and a list of segments, each
            with ``id``, ``isthing``, ``category_id`` and perhaps ``score``.

    Raises:
        HaystackError: the model is not panoptic, or does not list its segments.
    """
    found = output.get("panoptic_seg")
    if found is None or found[1] is None:
        raise HaystackError(
            "the output of detectron2's model has no panoptic_seg with a list of segments; take a "
            "panoptic model and switch it on in its configuration (MODEL....TEST.PANOPTIC_ON)"
        )
    ids, segments = found
    return FoundSegments(
        ids.cpu().numpy(),
        [
            FoundSegment(
                int(segment["id"]),
                (bool(segment["isthing"]), int(segment["category_id"])),
                None if segment.get("score") is None else float(segment["score"]),
            )
            for segment in segments
        ],
    )


def panoptic_classes(metadata: Any, vocabulary: Vocabulary) -> dict[tuple[bool, int], int]:
    """Whether a segment is a thing, and its number among these or among stuff -> its class.

    detectron2 counts things and stuff apart in some data sets (``..._panoptic_separated``, where
    stuff number 0 is all things together) and through in others (``coco_2017_val_panoptic``). Which
    numbers there are follows from the maps of the data set's ids, their meaning from the names.

    Args:
        metadata: of the data set, from ``MetadataCatalog``.
        vocabulary: numbers the classes.

    Raises:
        InputError: no names, or the vocabulary lacks one.
    """
    names: dict[tuple[bool, int], str] = {}
    for is_thing, kind in ((True, "thing"), (False, "stuff")):
        listed = list(getattr(metadata, f"{kind}_classes", ()))
        ids = getattr(metadata, f"{kind}_dataset_id_to_contiguous_id", None)
        numbers = range(len(listed)) if ids is None else sorted(set(ids.values()))
        for number in numbers:
            if number < len(listed) and not (kind == "stuff" and listed[number] == "things"):
                names[is_thing, number] = listed[number]
    if not names:
        raise InputError(
            "detectron2 knows no thing_classes and stuff_classes of the data set in DATASETS.TEST; "
            "name one that it has, such as coco_2017_val_panoptic, or register yours in a function "
            "of segment.setup"
        )
    return of_names(names, vocabulary)


def _weight_file(value: str) -> Path:
    """The file of ``segment.weights``: MaskDINO's by name where the configuration is MaskDINO's.

    Raises:
        InputError: it is not given, or does not exist.
    """
    if not value:
        raise InputError(
            "segment.kind=detectron2 needs segment.weights=FILE, which is empty; give the weights "
            "that segment.config is of"
        )
    if value in weights.NAMES:
        return weights.find(value)
    return files.given_file(
        value, "segment.weights", "; give the weights that segment.config is of"
    )


def _configuration(config: SegmentConfig) -> Any:
    if not config.config:
        raise InputError("segment.kind=detectron2 needs segment.config=FILE, detectron2's own")
    files.given_file(config.config, "segment.config")
    try:
        from detectron2.config import get_cfg
    except ImportError as error:
        raise MissingDependencyError(
            "detectron2", purpose="segment.kind=detectron2", extra="detectron2", then=INSTALL
        ) from error
    cfg = get_cfg()
    for name in config.setup:
        _function(name)(cfg)
    try:
        # Without this, detectron2 would also construct any Python object that a file names.
        cfg.merge_from_file(config.config, allow_unsafe=False)
    except Exception as error:  # yacs raises KeyError, AssertionError, ValueError; YAML its own
        raise InputError(
            f"not a configuration that detectron2 reads: {error}; keys of a project's own are "
            "declared by its function in segment.setup, for example "
            "maskdino:add_maskdino_config",
            path=config.config,
        ) from error
    return cfg


def _function(name: str) -> Any:
    from haystack.models.relation.references import import_by_name

    module, _, function = name.partition(":")
    if not module or not function:
        raise InputError(f"segment.setup expects package.module:function, got {name!r}")
    found = getattr(import_by_name(module), function, None)
    if not callable(found):
        raise InputError(f"segment.setup: the module {module!r} has no function {function!r}")
    return found


def _metadata(cfg: Any) -> Any:
    import detectron2.data  # which registers the data sets that it knows

    if not len(cfg.DATASETS.TEST):
        raise InputError("detectron2's configuration names no data set in DATASETS.TEST")
    return detectron2.data.MetadataCatalog.get(cfg.DATASETS.TEST[0])


def _tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint: of PyTorch's, or of arrays that its model zoo pickles."""
    import torch

    from haystack.io.restricted_pickle import read_pickle
    from haystack.models.checkpoints.state_dicts import read_state_dict

    if path.suffix != ".pkl":
        return read_state_dict(path)
    content = read_pickle(path)
    arrays = content.get("model", content) if isinstance(content, dict) else None
    if not isinstance(arrays, dict) or not all(isinstance(a, np.ndarray) for a in arrays.values()):
        raise InputError("expected arrays by name, bare or under 'model'", path=path)
    return {name: torch.tensor(array) for name, array in arrays.items()}
