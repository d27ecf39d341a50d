"""The part of pipeline.py about tar shards: the first image that a new process reads."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import Row, best_cpu_seconds, compared
from peers import Peers

from haystack.io.images import open_source


@dataclass(frozen=True)
class Sizes:
    """How much lies in a tar.

    Args:
        shard_members: as many images, each with a JSON as in SA-1B.
        shard_image_bytes: of an image; SA-1B's have a million.
        shard_repeat: the fastest of so many runs counts.
    """

    shard_members: int = 10_000
    shard_image_bytes: int = 20_000
    shard_repeat: int = 3


def shards(sizes: Sizes, _: Peers, scratch: Path) -> list[Row]:
    """One image of a tar, with the index that an earlier process left and without."""
    path = scratch / "sa_000000.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(sizes.shard_members):
            for suffix, size in (("jpg", sizes.shard_image_bytes), ("json", 500)):
                member = tarfile.TarInfo(f"./sa_{number}.{suffix}")
                member.size = size
                archive.addfile(member, io.BytesIO(bytes(size)))
    key = f"sa_000000/./sa_{sizes.shard_members // 2}.jpg"
    index = scratch / "index"

    def first_image(folder: Path | None) -> float:
        return best_cpu_seconds(
            lambda: open_source(path, index_folder=folder).read(key), sizes.shard_repeat
        )

    without, kept = first_image(None), first_image(index)
    what = f"first image of a tar of {sizes.shard_members}"
    note = f"index of {sum(file.stat().st_size for file in index.iterdir()) / 1e3:.0f} kB"
    return [compared("shards", what, 1e3 * kept, "ms", "without index", 1e3 * without, note=note)]


PARTS: dict[str, Callable[[Any, Peers, Path], list[Row]]] = {"shards": shards}
