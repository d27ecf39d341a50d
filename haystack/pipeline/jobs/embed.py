"""The embed stage as a job: which files it writes, and what its output depends on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch

from haystack.executors.base import Counts, Outputs
from haystack.io.images import ImageSource
from haystack.pipeline import tables
from haystack.pipeline.embed import ImageEncoder, embed_images
from haystack.pipeline.encoders.encoder import EncoderSpec
from haystack.pipeline.jobs.upstream import counts_of, shard_contents
from haystack.pipeline.workspace import FEATURES, Workspace


class EmbedJob:
    """Features of every image, by shard.

    Args:
        workspace: where to write; its ``config.embed`` holds.
        source: the images.
        encoder: found weights; loaded when the first shard needs them.
    """

    name: ClassVar[str] = "embed"

    def __init__(self, workspace: Workspace, source: ImageSource, encoder: EncoderSpec) -> None:
        self._config = workspace.config.embed
        self._source = source
        self._spec = encoder

    @cached_property
    def _encoder(self) -> ImageEncoder:
        return self._spec.load()

    def shards(self) -> Sequence[str]:
        """The source's shards."""
        return self._source.shards()

    def inputs(self, shard: str) -> Mapping[str, str]:
        """None: it reads the source."""
        return {}

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        """What determines features, their storage type, and the shard's images."""
        return {
            **self._spec.fingerprint,
            "dtype": self._config.dtype,
            "images": self._source.signature(shard),
        }

    def run(self, shard: str, out: Outputs) -> Counts:
        """Encode the shard's images; broken ones are quarantined."""
        threads = self._config.threads
        features = embed_images(
            shard_contents(self._source, shard, out),
            self._encoder,
            batch_size=self._config.batch_size,
            dtype=self._config.dtype,
            set_aside=out.quarantine,
            threads=decoding_threads() if threads is None else threads,
        )
        tables.write_features(out.path(FEATURES.format(shard=shard)), features)
        return counts_of(len(features.image_keys), out)


def decoding_threads() -> int:
    """As many as PyTorch computes with; its share of the cores under torchrun, which allows one."""
    processes = os.environ.get("LOCAL_WORLD_SIZE")
    if processes is None:
        return torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // int(processes))
