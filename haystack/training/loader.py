"""Reads the images of coming steps in threads, in the order in which they are drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from torch import Tensor

from haystack.training.cache import SceneEncoder, View
from haystack.training.detections import match_detections, matched_objects
from haystack.training.losses import RelationTargets
from haystack.training.order import Draw
from haystack.training.sources import TrainingImage

_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class Loaded:
    """One image, read: its objects, and what is said about them.

    Args:
        image: as it was listed.
        view: what the encoder makes its features from.
        targets: of the objects that the model sees.
        matched: how many annotated objects are among these.
    """

    image: TrainingImage
    view: View
    targets: RelationTargets
    matched: int


class Loader:
    """Batches of images, read ahead.

    Decoding pictures and masks leaves Python's lock, so that threads are enough; they do no
    arithmetic whose order could change the result.

    Args:
        images: all of them, by number.
        encoder: how an image is read.
        num_predicates: P.
        workers: threads; 0 = read when asked for.
        match_iou: least overlap of a detection with the annotated object that it is.
    """

    def __init__(
        self,
        images: Sequence[TrainingImage],
        encoder: SceneEncoder,
        num_predicates: int,
        workers: int = 0,
        match_iou: float = 0.5,
    ) -> None:
        self.images, self.encoder, self.num_predicates = images, encoder, num_predicates
        self.workers, self.match_iou = workers, match_iou
        self._matched: dict[str, Tensor] = {}

    def load(self, draw: Draw) -> Loaded:
        """Read one image.

        Raises:
            InputError: a file is missing or broken.
        """
        image = self.images[draw.image]
        view = self.encoder.read(image, flipped=draw.flipped)
        targets = RelationTargets.from_graph(image.graph, self.num_predicates, image.faulty)
        if image.detected is None:
            return Loaded(image, view, targets, len(image.graph.segments))
        matches = self._matches(image)
        return Loaded(image, view, targets.of_detections(matches), matched_objects(matches))

    def _matches(self, image: TrainingImage) -> Tensor:
        """Found once: mirroring moves both sides alike."""
        known = self._matched.get(image.graph.image_id)
        if known is None:
            known = self._matched[image.graph.image_id] = match_detections(image, self.match_iou)
        return known

    def batches(self, draws: Iterable[Sequence[Draw]]) -> Generator[list[Loaded], None, None]:
        """Read batch after batch; closing the iterator ends the threads."""
        if not self.workers:
            for batch in draws:
                yield [self.load(draw) for draw in batch]
            return
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="haystack-read")
        waiting: deque[list[Future[Loaded]]] = deque()
        try:
            for batch in draws:
                waiting.append([pool.submit(self.load, draw) for draw in batch])
                if len(waiting) > _BATCHES_AHEAD:
                    yield [future.result() for future in waiting.popleft()]
            while waiting:
                yield [future.result() for future in waiting.popleft()]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
