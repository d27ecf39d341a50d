"""What the parts of the benchmark share: sizes, and words for the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peers import largest_difference

MS = "ms/image"


@dataclass(frozen=True)
class Sizes:
    """How much is measured; the defaults are those of the data sets that the parts stand for.

    Args:
        images: PSG's test set.
        objects, pairs: of an image; pairs are objects (objects - 1).
        predicates, relations: of PSG.
        detections: objects of an SGDet image.
        sgdet_images: distinct ones.
        stream_images: of the memory test, VG's test set.
        haystack_images, haystack_labels: of the Haystack data set.
        authors_images: of these go to the authors' script; 0 = all.
        kaihuatang_images: images that KaihuaTang's evaluator gets.
        mask_images, height, width, segments: of the mask parts.
        repeat: the fastest of so many runs counts.
    """

    images: int = 2177
    objects: int = 16
    predicates: int = 56
    relations: int = 6
    detections: int = 80
    sgdet_images: int = 40
    stream_images: int = 26446
    haystack_images: int = 11300
    haystack_labels: int = 25000
    authors_images: int = 2825
    kaihuatang_images: int = 300
    mask_images: int = 8
    height: int = 1500
    width: int = 2250
    segments: int = 16
    repeat: int = 7


def per_image_ms(answer: dict[str, Any] | None) -> float | None:
    """A driver's time in CPU ms an image; None without a driver."""
    return None if answer is None else 1e3 * answer["seconds"] / answer["images"]


def agreement(ours_: Any, theirs: dict[str, Any]) -> str:
    """How far values lie apart, so that no fast wrong answer passes."""
    plain = {name: float(value) for name, value in ours_.items() if "/" not in name}
    apart = largest_difference(plain, theirs)
    return f"values differ by at most {max(apart.values(), default=0.0):.1g}"
