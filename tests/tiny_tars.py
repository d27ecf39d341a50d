"""Tar shards of tiny pictures, some broken, and a job over them that costs next to nothing."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from haystack.errors import InputError
from haystack.executors.base import Counts, Outputs
from haystack.io.images import decode_image, open_source


def write_tars(folder: Path, shards: int, *, pictures: int = 3, side: int = 8) -> set[str]:
    """Write ``shards`` tars; every seventh has a broken picture. Returns the broken ones' keys."""
    folder.mkdir(parents=True)
    values, broken = np.random.default_rng(0), set()
    for number in range(shards):
        with tarfile.open(folder / f"t{number:03d}.tar", "w") as tar:
            for index in range(pictures):
                stream = io.BytesIO()
                Image.fromarray(values.integers(0, 256, (side, side, 3), np.uint8)).save(
                    stream, "PNG"
                )
                content = stream.getvalue()
                if number % 7 == 3 and index == 1:
                    content = content[: len(content) // 2]
                    broken.add(f"t{number:03d}/{index}.png")
                entry = tarfile.TarInfo(f"{index}.png")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return broken


@dataclass(frozen=True)
class ColourRecipe:
    """A job that writes the mean colour of every picture.

    Args:
        source: folder of tars.
        seconds: time to spend on a shard.
        poison: a shard that kills its process.
        raises: a shard that raises an ``InputError``.
        stillborn: processes that build it for a device die of it.
        trace: a file that gets a line for each shard that a process begins.
    """

    source: str
    seconds: float = 0.0
    poison: str = ""
    raises: str = ""
    stillborn: bool = False
    trace: str = ""

    def __call__(self, device: str | None = None) -> ColourJob:
        if self.stillborn and device is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return ColourJob(self, device)


class ColourJob:
    name = "colour"

    def __init__(self, recipe: ColourRecipe, device: str | None) -> None:
        self._recipe = recipe
        self._device = device
        self._source = open_source(recipe.source)

    def shards(self) -> Sequence[str]:
        return self._source.shards()

    def inputs(self, shard: str) -> Mapping[str, str]:
        return {}

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        return {"images": self._source.signature(shard)}

    def run(self, shard: str, out: Outputs) -> Counts:
        recipe = self._recipe
        if recipe.trace:
            with Path(recipe.trace).open("a") as stream:
                stream.write(f"{shard} {os.getpid()} {self._device}\n")
        colours: dict[str, list[float]] = {}
        target = out.path(f"colour/{shard}.json")
        for key, content in self._source.iterate(shard):
            out.advance()
            target.write_text("half")
            time.sleep(recipe.seconds / 3)
            if shard == recipe.poison:
                os.kill(os.getpid(), signal.SIGKILL)
            if shard == recipe.raises:
                raise InputError("this shard is bad", path=shard)
            assert isinstance(content, bytes)
            try:
                picture = np.asarray(decode_image(content, key), dtype=np.float64)
            except InputError as error:
                out.quarantine(key, error.message)
                continue
            colours[key] = picture.mean(axis=(0, 1)).tolist()
        target.write_text(json.dumps(colours))
        return Counts(len(colours) + len(out.quarantined), len(colours))


def quarantined(root: Path) -> set[str]:
    """Items in ``quarantine.jsonl``; each must be there once."""
    items = [json.loads(line)["item"] for line in (root / "quarantine.jsonl").open()]
    assert len(items) == len(set(items))
    return set(items)


@contextmanager
def killing_workers(trace: Path, kills: int, seed: int) -> Iterator[list[int]]:
    """SIGKILL processes at random moments, those of the shards that ``trace`` names last.

    Yields the numbers of those that were killed, as they come.
    """
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        chosen = random.Random(seed)
        while not trace.exists() and not over.wait(0.01):
            pass  # workers are slow to start on a busy machine, and short runs are soon over
        wait = chosen.uniform(0, 0.2)
        while len(killed) < kills and not over.wait(wait):
            wait = chosen.uniform(0.1, 1.0)
            lines = trace.read_text().splitlines() if trace.exists() else []
            working = {int(line.split()[1]) for line in lines[-2:]} - set(killed)
            if working:
                victim = chosen.choice(sorted(working))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
