"""Which images a step draws: a function of the seed and the step, and of nothing that came before.

So a resumed run needs no record of what was drawn, and any number of processes draws the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from haystack.training.config import TrainConfig

_FLIPS, _IMAGES = 0, 1


class Draw(NamedTuple):
    """One image of a batch: its number, and whether it is mirrored."""

    image: int
    flipped: bool


class Order:
    """An endless stream of images, cut into batches of one size.

    Every group of images is gone through in a random order, then again in another one. A batch
    holds the groups in their shares, to one image; batches run on over the end of a pass.

    Args:
        sizes: images of each group; the second group's numbers follow the first's.
        shares: of each group in the stream; one or two of them.
        batch_size: images of a batch; at most as many as there are.
        seed: of the orders and the flips.
        flip: whether half of the images is mirrored.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        shares: Sequence[Fraction],
        *,
        batch_size: int,
        seed: int,
        flip: bool,
    ) -> None:
        self.sizes, self.shares, self.seed, self.flip = tuple(sizes), tuple(shares), seed, flip
        self.batch_size = min(batch_size, sum(sizes))
        self._permutation = lru_cache(maxsize=4)(self._draw_permutation)

    @property
    def steps_per_epoch(self) -> float:
        """Batches that draw as many images as there are."""
        return sum(self.sizes) / self.batch_size

    def steps(self, epochs: float) -> int:
        """How many batches it takes to draw ``epochs`` times as many images as there are."""
        images = Fraction(epochs).limit_denominator(10**6) * sum(self.sizes)
        return -(-images // self.batch_size)

    def batch(self, step: int) -> list[Draw]:
        """The images of a step, counted from 1."""
        first = (step - 1) * self.batch_size
        images = [self._image(first + place) for place in range(self.batch_size)]
        if not self.flip:
            return [Draw(image, False) for image in images]
        generator = np.random.default_rng((self.seed, _FLIPS, step))
        flips = generator.integers(2, size=self.batch_size).tolist()
        return [Draw(image, bool(flipped)) for image, flipped in zip(images, flips, strict=True)]

    def _image(self, position: int) -> int:
        if len(self.sizes) == 1:
            return self._nth(0, position)
        # Evenly spread: the second group is drawn whenever its share of the stream grows by one.
        before, after = (int((position + more) * self.shares[1]) for more in (0, 1))
        if after > before:
            return self.sizes[0] + self._nth(1, before)
        return self._nth(0, position - before)

    def _nth(self, group: int, number: int) -> int:
        turn, place = divmod(number, self.sizes[group])
        return int(self._permutation(group, turn)[place])

    def _draw_permutation(self, group: int, turn: int) -> npt.NDArray[np.int64]:
        generator = np.random.default_rng((self.seed, _IMAGES, group, turn))
        return generator.permutation(self.sizes[group])


def number_of_steps(config: TrainConfig, order: Order) -> int:
    """The length of a run: by ``epochs`` where they are given, else by ``steps``."""
    return config.steps if config.epochs is None else order.steps(config.epochs)
