"""Reads the images of coming steps in threads, in the order in which they are drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from haystack.training.cache import SceneEncoder, View
from haystack.training.losses import RelationTargets
from haystack.training.order import Draw
from haystack.training.sources import TrainingImage

_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class Loaded:
    """One image, read: its objects, and what is said about them."""

    image: TrainingImage
    view: View
    targets: RelationTargets


class Loader:
    """Batches of images, read ahead.

    Decoding pictures and masks leaves Python's lock, so that threads are enough; they do no
    arithmetic whose order could change the result.

    Args:
        images: all of them, by number.
        encoder: how an image is read.
        num_predicates: P.
        workers: threads; 0 = read when asked for.
    """

    def __init__(
        self,
        images: Sequence[TrainingImage],
        encoder: SceneEncoder,
        num_predicates: int,
        workers: int = 0,
    ) -> None:
        self.images, self.encoder, self.num_predicates = images, encoder, num_predicates
        self.workers = workers

    def load(self, draw: Draw) -> Loaded:
        """Read one image."""
        image = self.images[draw.image]
        view = self.encoder.read(image, flipped=draw.flipped)
        targets = RelationTargets.from_graph(image.graph, self.num_predicates, image.faulty)
        return Loaded(image, view, targets)

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
