"""Images read from disk and encoded by the frozen part of the model, once or every time.

Readers may be many threads; encoding happens where the model is, in the training loop.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

import haystack
from haystack import files
from haystack.models.relation.features.base import EncodedScene
from haystack.models.relation.inputs import SceneInput
from haystack.models.relation.predict import read_scene
from haystack.training.sources import TrainingImage, identity
from haystack.training.tasks import PREDCLS, Task
from haystack.training.trainee import Trainee, plain_tensors

_LOG = logging.getLogger(__name__)
_KEY = "haystack_encoded_scene"
_FORMAT = 1


@dataclass(frozen=True)
class View:
    """An image as a reader hands it over.

    Args:
        key: under which the cache knows it; empty without a cache.
        scene: what is to be encoded; None where ``encoded`` came from the cache.
        encoded: what the cache had.
    """

    key: str
    scene: SceneInput | None
    encoded: EncodedScene | None


class SceneEncoder:
    """Encodes images without a cache: memory holds one batch, whatever the data set's size.

    Args:
        trainee: the model.
        task: what it is told of the objects.
    """

    def __init__(self, trainee: Trainee, task: Task = PREDCLS) -> None:
        self.trainee, self.task = trainee, task

    def read(self, image: TrainingImage, *, flipped: bool) -> View:
        """Read an image, in whatever thread.

        Raises:
            InputError: a file is missing or broken.
        """
        return View("", self._scene(image, flipped), None)

    def encode(self, views: Sequence[View]) -> list[EncodedScene]:
        """Encode what readers handed over."""
        return self.trainee.encode([view.scene for view in views if view.scene is not None])

    def _scene(self, image: TrainingImage, flipped: bool) -> SceneInput:
        reads_images = self.trainee.model.reads_images
        scene = read_scene(image.dataset, image.seen, with_image=reads_images)
        scene = self.task.scene(scene)
        return scene.flipped() if flipped else scene


class CachingEncoder(SceneEncoder):
    """Encodes each image once, alone, so that its bits don't depend on what stood beside it."""

    def read(self, image: TrainingImage, *, flipped: bool) -> View:
        """Take an image from the cache, or read it; in whatever thread."""
        key = self.key(image, flipped)
        encoded = self.get(key)
        return View(key, self._scene(image, flipped) if encoded is None else None, encoded)

    def encode(self, views: Sequence[View]) -> list[EncodedScene]:
        """Encode what the cache lacked, and keep it."""
        found = []
        for view in views:
            encoded = view.encoded
            if encoded is None and view.scene is not None:
                encoded = self.get(view.key)  # another view of the batch may have brought it
                if encoded is None:
                    encoded = self.trainee.compact(self.trainee.encode([view.scene])[0])
                    self.put(view.key, encoded)
            if encoded is not None:
                found.append(encoded)
        return found

    def key(self, image: TrainingImage, flipped: bool) -> str:
        """Under which the image is kept."""
        raise NotImplementedError

    def get(self, key: str) -> EncodedScene | None:
        """What is kept under the key."""
        raise NotImplementedError

    def put(self, key: str, encoded: EncodedScene) -> None:
        """Keep it."""
        raise NotImplementedError


class MemoryEncoder(CachingEncoder):
    """Keeps encoded images in memory, for this run."""

    def __init__(self, trainee: Trainee, task: Task = PREDCLS) -> None:
        super().__init__(trainee, task)
        self._kept: dict[str, EncodedScene] = {}

    def key(self, image: TrainingImage, flipped: bool) -> str:
        """Its id and its side."""
        return f"{int(flipped)}:{image.graph.image_id}"

    def get(self, key: str) -> EncodedScene | None:
        """What is kept under the key."""
        return self._kept.get(key)

    def put(self, key: str, encoded: EncodedScene) -> None:
        """Keep it, in the computer's memory rather than an accelerator's."""
        tensors = {name: tensor.cpu() for name, tensor in encoded.tensors.items()}
        self._kept[key] = EncodedScene(encoded.scene, tensors)


class FolderEncoder(CachingEncoder):
    """Keeps encoded images as safetensors files, for this run and others.

    A file's name is a hash of all that its content depends on: the bytes of picture and masks, the
    objects, the side, and the model's frozen weights and settings. So a changed input is encoded
    anew, and runs of different models may share a folder.

    Args:
        trainee: the model.
        folder: of the cache; made if missing.
        task: what the model is told of the objects.

    Raises:
        InputError: nothing can be written there.
    """

    def __init__(self, trainee: Trainee, folder: str | Path, task: Task = PREDCLS) -> None:
        super().__init__(trainee, task)
        self.folder = Path(folder)
        files.make_folder(self.folder)
        self._model = _model_identity(trainee)
        self._images: dict[str, str] = {}

    def key(self, image: TrainingImage, flipped: bool) -> str:
        """A hash of all that the encoded image depends on."""
        image_id = image.graph.image_id
        known = self._images.get(image_id)
        if known is None:
            known = self._images[image_id] = self._content(image)
        return files.sha256_text(f"{self._model}:{known}:{int(flipped)}")

    def get(self, key: str) -> EncodedScene | None:
        """Read the file of this key; a broken one is told of, and made anew."""
        path = self._path(key)
        if not path.is_file():
            return None
        try:
            return _read_encoded(path)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            _LOG.warning("%s: cannot be read (%s); it is made anew", path, error)
            return None

    def put(self, key: str, encoded: EncodedScene) -> None:
        """Write the file of this key, all of it or nothing."""
        _write_encoded(self._path(key), encoded)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.safetensors"

    def _content(self, image: TrainingImage) -> str:
        graph, dataset = image.seen, image.dataset
        names = [graph.pan_seg_file_name]
        if self.trainee.model.reads_images:
            names.append(graph.file_name)
        hashes = [
            None
            if name is None or not dataset.path_of(name).is_file()  # the reader will complain
            else files.sha256_file(dataset.path_of(name))
            for name in names
        ]
        told = [] if self.task.name == "predcls" else [self.task.name]
        return files.sha256_text(files.canonical_json([identity(graph), hashes, *told]))


def build_encoder(cache: str, trainee: Trainee, task: Task = PREDCLS) -> SceneEncoder:
    """The encoder that ``TrainConfig.cache`` asks for.

    Args:
        cache: ``none``, ``memory`` or a folder.
        trainee: the model.
        task: what the model is told of the objects.

    Raises:
        InputError: nothing can be written into the folder.
    """
    if cache == "none":
        return SceneEncoder(trainee, task)
    if cache == "memory":
        return MemoryEncoder(trainee, task)
    return FolderEncoder(trainee, cache, task)


def _model_identity(trainee: Trainee) -> str:
    model: Any = trainee.model
    source = getattr(model, "features", model)
    digest = hashlib.sha256()
    header = [_FORMAT, haystack.__version__, type(source).__module__, type(source).__qualname__]
    digest.update(files.canonical_json([*header, dict(trainee.encoding_settings())]).encode())
    for name, tensor in sorted(plain_tensors(trainee.frozen_state()).items()):
        digest.update(files.canonical_json([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _write_encoded(path: Path, encoded: EncodedScene) -> None:
    scene = encoded.scene
    tensors = {f"tensors/{name}": tensor for name, tensor in encoded.tensors.items()}
    tensors |= {
        f"scene/{name}": torch.from_numpy(getattr(scene, name))
        for name in ("labels", "boxes", "segment_ids", "class_scores")
        if getattr(scene, name) is not None
    }
    header = {"image_id": scene.image_id, "height": scene.height, "width": scene.width}
    content = save(plain_tensors(tensors), {_KEY: files.canonical_json(header)})
    files.write_bytes(path, content)


def _read_encoded(path: Path) -> EncodedScene:
    with safe_open(path, framework="pt", device="cpu") as stored:
        header = json.loads((stored.metadata() or {})[_KEY])
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    arrays: dict[str, np.ndarray] = {
        name.partition("/")[2]: tensor.numpy()
        for name, tensor in tensors.items()
        if name.startswith("scene/")
    }
    scene = SceneInput(
        image_id=header["image_id"],
        height=header["height"],
        width=header["width"],
        labels=arrays["labels"],
        boxes=arrays["boxes"],
        id_map=None,
        segment_ids=arrays["segment_ids"],
        class_scores=arrays.get("class_scores"),
    )
    kept = {
        name.partition("/")[2]: tensor
        for name, tensor in tensors.items()
        if name.startswith("tensors/")
    }
    return EncodedScene(scene, kept)
