"""Segments that a model of the package transformers finds: Mask2Former, OneFormer, EoMT and kin.

Weights come from a folder or the hub's cache, never from the network, and every one that the model
has must be there: transformers itself fills gaps with random numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from haystack import files
from haystack.errors import InputError, MissingDependencyError
from haystack.io.class_numbers import of_names
from haystack.pipeline.segmenters.model import FoundSegment, FoundSegments, ModelSegmenter
from haystack.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

    from haystack.pipeline.config import SegmentConfig

_MODELS = ("mask2former", "maskformer", "oneformer", "eomt", "eomt_dinov3")
_TASK = "panoptic"
_READ = (".json", ".txt", ".safetensors", ".bin")
_SHOWN = 5  # missing tensors named in an error


@dataclass(frozen=True)
class _Loaded:
    """A model with what stands before and behind it.

    Args:
        network: gives logits of classes and masks for each query.
        prepare: equally large pictures -> the network's inputs.
        post_process: transformers' own way from these logits to segments.
        device: where the network is.
    """

    network: Callable[..., Any]
    prepare: Callable[[Sequence[Image.Image]], dict[str, torch.Tensor]]
    post_process: Callable[..., Any]
    device: torch.device


class TransformersSegmenter(ModelSegmenter):
    """A panoptic model of transformers, with its own preparation and post-processing.

    Args:
        config: ``model``, a folder or the name of one that was downloaded; thresholds, whose
            defaults are the model's post-processing's.
        vocabulary: must have the model's classes.

    Raises:
        MissingDependencyError: transformers is not installed.
        InputError: no such model here (the message says how to get it), one that does not segment,
            or a class that the vocabulary lacks.
    """

    def __init__(self, config: SegmentConfig, vocabulary: Vocabulary) -> None:
        transformers = _package()
        self._folder = _folder(config.model)
        try:
            self._settings = transformers.AutoConfig.from_pretrained(
                self._folder, local_files_only=True
            )
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"no configuration of a model of transformers: {_first_line(error)}",
                path=self._folder,
            ) from error
        kind = self._settings.model_type
        if kind not in _MODELS:
            raise InputError(
                f"expected a model of the kinds {', '.join(_MODELS)}, got {kind}", path=self._folder
            )
        super().__init__(config, vocabulary, of_names(self._settings.id2label, vocabulary))

    def fingerprint(self) -> dict[str, Any]:
        """Hash of the folder's files, thresholds, and precision."""
        read = sorted(path for path in self._folder.iterdir() if path.suffix in _READ)
        hashes = {path.name: files.sha256_file(path) for path in read}
        return {
            "segmenter": "transformers",
            "model": files.sha256_text(files.canonical_json(hashes)),
            "precision": self._config.precision,
            **self._config.thresholds(),
        }

    def shape(self, picture: Image.Image) -> Hashable:
        """Its size: equal ones are prepared equally, and none is padded for another's sake."""
        return picture.size

    def load(self) -> _Loaded:
        """See ``ModelSegmenter``."""
        import torch

        from haystack.devices import usable_device

        transformers = _package()
        device = usable_device(self._config.device)
        try:
            network, report = transformers.AutoModelForUniversalSegmentation.from_pretrained(
                self._folder, local_files_only=True, output_loading_info=True, dtype=torch.float32
            )
            # OneFormer's would fetch texts from the hub that only training reads.
            images = transformers.AutoImageProcessor.from_pretrained(
                self._folder, local_files_only=True, class_info_file=None
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(
                f"cannot load the model: {_first_line(error)}", path=self._folder
            ) from error
        lacking = sorted(report["missing_keys"])
        if lacking:
            raise InputError(
                f"{len(lacking)} of the model's tensors are not in its file, which transformers "
                f"would fill with random numbers: {', '.join(lacking[:_SHOWN])}",
                path=self._folder,
            )
        network = network.eval().requires_grad_(False).to(device)
        return _Loaded(
            torch.compile(network, dynamic=False) if self._config.compile else network,
            self._preparation(images),
            images.post_process_panoptic_segmentation,
            device,
        )

    def find(self, pictures: Sequence[Image.Image]) -> list[FoundSegments]:
        """See ``ModelSegmenter``; a picture may be too thin to be scaled."""
        import torch

        from haystack.models.precision import autocast
        from haystack.pipeline.memory import is_out_of_memory

        loaded: _Loaded = self.model
        try:
            prepared = loaded.prepare(pictures)
        except (RuntimeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            width, height = pictures[0].size
            raise InputError(
                f"the model's own preparation takes no image of {width}x{height} pixels: "
                f"{_first_line(error)}"
            ) from error
        inputs = {key: value.to(loaded.device) for key, value in prepared.items()}
        with torch.inference_mode():
            with autocast(loaded.device, self._config.precision):
                output = loaded.network(**inputs)
            return [
                self._segments(
                    loaded.post_process,
                    output.class_queries_logits[place].float(),
                    output.masks_queries_logits[place].float(),
                    (picture.height, picture.width),
                )
                for place, picture in enumerate(pictures)
            ]

    def _preparation(self, images: Any) -> Callable[..., dict[str, torch.Tensor]]:
        if self._settings.model_type != "oneformer":
            return lambda pictures: {
                "pixel_values": images(images=list(pictures), return_tensors="pt")["pixel_values"]
            }
        # OneFormer is told the task, in words.
        import torch

        tokenizer = _package().AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
        words = tokenizer(
            [f"the task is {_TASK}"],
            padding="max_length",
            max_length=self._settings.task_seq_len,
            truncation=True,
        )
        task = torch.tensor(words["input_ids"]) * torch.tensor(words["attention_mask"])

        def prepare(pictures: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
            tasks = [_TASK] * len(pictures)
            prepared = images(images=list(pictures), task_inputs=tasks, return_tensors="pt")
            return {
                "pixel_values": prepared["pixel_values"],
                "task_inputs": task.expand(len(pictures), -1),
            }

        return prepare

    def _segments(
        self,
        post_process: Callable[..., Any],
        classes: torch.Tensor,
        masks: torch.Tensor,
        size: tuple[int, int],
    ) -> FoundSegments:
        """Segments of one picture.

        Queries below the threshold are left out before and not after their masks are enlarged:
        EoMT's 200 would fill 2.7 GB for a picture of 1500 x 2250 pixels. Regions of stuff are not
        joined here, because transformers gives a segment after a joined one an id that another
        segment has (``compute_segments``, 5.24); ``panoptic_record`` does it.
        """
        settings = {
            "threshold": self._config.score_threshold,
            "overlap_mask_area_threshold": self._config.overlap_threshold,
        }
        known = inspect.signature(post_process).parameters
        given = {
            key: known[key].default if value is None else value for key, value in settings.items()
        }
        scores, labels = classes.softmax(-1).max(-1)
        sure = (labels != classes.shape[-1] - 1) & (scores > given["threshold"])
        if not sure.any():
            return FoundSegments(np.zeros(size, dtype=np.int32), [])
        if "label_ids_to_fuse" in known:
            given["label_ids_to_fuse"] = set()
        kept = SimpleNamespace(
            class_queries_logits=classes[sure][None], masks_queries_logits=masks[sure][None]
        )
        (found,) = post_process(kept, target_sizes=[size], **given)
        return FoundSegments(
            found["segmentation"].cpu().numpy().astype(np.int32),
            [FoundSegment(s["id"], s["label_id"], s["score"]) for s in found["segments_info"]],
        )


def _package() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingDependencyError(
            "transformers", purpose="segment.kind=transformers", extra="transformers"
        ) from error
    return transformers


def _folder(model: str) -> Path:
    """Where the model is: a folder of that name, else what the hub's cache holds under it."""
    if not model:
        raise InputError(
            "segment.kind=transformers needs segment.model, a name such as "
            "facebook/mask2former-swin-large-coco-panoptic, or a folder"
        )
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise InputError(
            f"there is no folder {model!r}, and no model of this name was downloaded; where there "
            f"is a network run: hf download {model} (and give the folder to which it was copied)"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
