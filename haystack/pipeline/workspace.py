"""A workspace: the folder that holds one proposal campaign, and the names of everything in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from haystack import files
from haystack.environment import software
from haystack.errors import InputError
from haystack.io.images import ImageSource, open_source
from haystack.pipeline import tables
from haystack.pipeline.clustering.clusters_file import Cluster, check_clusters, load_clusters
from haystack.pipeline.config import (
    WorkspaceConfig,
    dump_config,
    load_config,
    with_absolute_paths,
)
from haystack.pipeline.propose import Proposal
from haystack.pipeline.scoring.candidates import Candidates
from haystack.pipeline.segment_index import SegmentIndex
from haystack.scene_graph import Segment
from haystack.vocabulary import Vocabulary, psg_vocabulary

CONFIG = "workspace.yaml"
TAR_INDEX = "index"
FEATURES = "embed/{shard}.safetensors"
CENTROIDS = "cluster/centroids.safetensors"
ASSIGNMENTS = "cluster/assignments.parquet"
CLUSTERS = "cluster/clusters.yaml"
CONTACT_SHEET = "cluster/sheets/{cluster:03d}.jpg"
SWEPT = "sweep/{shard}.json"
SEGMENTED = "segment/{shard}.parquet"
CANDIDATES = "score/{shard}.parquet"
GATHERED = "gather/{block}.parquet"
PROPOSALS = "proposals.parquet"
EXPORTED = "export/annotation.json"


class Workspace:
    """Paths, settings and stage outputs of one campaign.

    Args:
        root: the folder.
        config: settings of all stages.

    Raises:
        InputError: a file stands where the folder should be.
    """

    def __init__(self, root: str | Path, config: WorkspaceConfig) -> None:
        self.root = Path(root)
        self.config = config
        self._changes: tuple[str | Path | None, Sequence[str]] | None = None
        for place in (self.root, *self.root.parents):
            if place.exists():
                if not place.is_dir():
                    raise InputError("expected a folder for the workspace, got a file", path=place)
                break

    @classmethod
    def configured(
        cls,
        root: str | Path,
        *,
        config_file: str | Path | None = None,
        overrides: Sequence[str] = (),
    ) -> Workspace:
        """A new workspace, or an existing one with changed settings; writes nothing.

        Settings of an existing workspace hold unless the file or an override changes them.
        Relative paths are taken against the current folder, once.

        Args:
            root: the folder.
            config_file: YAML with settings.
            overrides: ``stage.key=value``.

        Raises:
            InputError: the settings are wrong.
        """
        existing = Path(root) / CONFIG
        base = load_config(existing) if existing.is_file() else None
        config = with_absolute_paths(load_config(config_file, overrides, base=base))
        workspace = cls(root, config)
        workspace._changes = (config_file, tuple(overrides))
        return workspace

    @classmethod
    def create(
        cls,
        root: str | Path,
        *,
        config_file: str | Path | None = None,
        overrides: Sequence[str] = (),
    ) -> Workspace:
        """As :meth:`configured`, and save ``workspace.yaml``."""
        workspace = cls.configured(root, config_file=config_file, overrides=overrides)
        workspace.save()
        return workspace

    @classmethod
    def open(cls, root: str | Path) -> Workspace:
        """Open an existing workspace.

        Raises:
            InputError: there is none.
        """
        path = Path(root) / CONFIG
        if not path.is_file():
            raise InputError(
                f"this folder has no {CONFIG}, so it is no workspace; "
                "run: haystack embed FOLDER source.images=IMAGES",
                path=root,
            )
        return cls(root, load_config(path))

    def save(self) -> None:
        """Write ``workspace.yaml``: settings, the vocabulary in full, what saved it.

        Settings of an existing workspace are read again and changed as ``configured`` was asked:
        another stage may have saved its own since. Whoever saves at the same moment has to lock.
        """
        config, path = self.config, self.root / CONFIG
        if self._changes is not None and path.is_file():
            file, overrides = self._changes
            config = with_absolute_paths(load_config(file, overrides, base=load_config(path)))
        resolved = {"vocabulary": self.vocabulary.to_dict(), **software()}
        files.write_text(path, dump_config(config, resolved))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The class lists that indices refer to."""
        name = self.config.vocabulary
        return psg_vocabulary() if name == "psg" else Vocabulary.from_file(name)

    @cached_property
    def source(self) -> ImageSource:
        """The campaign's images.

        Raises:
            InputError: none are configured, or nothing is there.
        """
        if not self.config.source.images:
            raise InputError(
                "no images are configured; give source.images=FOLDER", path=self.root / CONFIG
            )
        return open_source(
            self.config.source.images,
            shard_size=self.config.source.shard_size,
            index_folder=self.root / TAR_INDEX,
        )

    def path(self, template: str, **names: object) -> Path:
        """Absolute place of an output, by one of this module's templates."""
        return self.root / template.format(**names)

    def predicate_indices(self) -> list[int]:
        """Predicates to propose for: those configured, or all.

        Raises:
            InputError: a configured name is not in the vocabulary.
        """
        names = self.config.propose.predicates or self.vocabulary.predicate_classes
        return [self.vocabulary.predicate_index(name) for name in names]

    def features(self, shard: str) -> tables.Features:
        """Features of a shard (stage ``embed``)."""
        return tables.read_features(self._output("embed", FEATURES, shard=shard))

    def centroids(self) -> npt.NDArray[np.float32]:
        """Centroids float32 [k, D] (stage ``cluster``)."""
        return tables.read_centroids(self._output("cluster", CENTROIDS))

    def clusters_of(self, image_keys: Collection[str]) -> dict[str, int]:
        """Image key -> cluster, of those of the images that have one (stage ``cluster``).

        Ask by shard: eleven million keys in Python are a gigabyte.
        """
        return tables.read_clusters(self._output("cluster", ASSIGNMENTS), image_keys)

    def clusters(self) -> list[Cluster]:
        """Names, sizes and inclusion of the clusters, by id (stage ``cluster``).

        Raises:
            InputError: someone's edit broke the file, or removed or added an entry.
        """
        path = self._output("cluster", CLUSTERS)
        clusters = load_clusters(path)[0]
        check_clusters(clusters, len(self.centroids()), path)
        return clusters

    def segmented(self, shard: str) -> Iterator[tables.SegmentedImage]:
        """Segmented images of a shard (stage ``segment``)."""
        return tables.read_segmented(self._output("segment", SEGMENTED, shard=shard))

    def segmented_images(self, image_ids: Collection[str]) -> Iterator[tables.SegmentedImage]:
        """Those of the images that are segmented, shard by shard; of others nothing is read."""
        for path, rows in sorted(self._rows_of(image_ids).items()):
            yield from tables.read_segmented(self.root / path, rows)

    def segments_of(self, image_ids: Collection[str]) -> dict[str, tuple[Segment, ...]]:
        """Image id -> segments, of those of the images that are segmented; reads no masks."""
        found: dict[str, tuple[Segment, ...]] = {}
        for path, rows in self._rows_of(image_ids).items():
            found.update(tables.read_segments(self.root / path, rows))
        return found

    def _rows_of(self, image_ids: Collection[str]) -> Mapping[str, Collection[int]]:
        return SegmentIndex(self.root).by_shard(image_ids) if image_ids else {}

    def candidates(self, shard: str) -> Candidates:
        """The best candidates of a shard (stage ``score``)."""
        return tables.read_candidates(self._output("score", CANDIDATES, shard=shard))

    def proposals(self) -> list[Proposal]:
        """The queue (stage ``propose``)."""
        return tables.read_proposals(self._output("propose", PROPOSALS))

    def _output(self, stage: str, template: str, **names: object) -> Path:
        path = self.path(template, **names)
        if not path.is_file():
            raise missing_stage(self.root, stage, path)
        return path


def missing_stage(root: Path, stage: str, path: Path) -> InputError:
    """The error for an output that its stage has not made yet."""
    return InputError(
        f"the stage '{stage}' has not made this file yet; run: haystack {verb_of(stage)} {root}",
        path=path,
    )


def verb_of(stage: str) -> str:
    """The verb that runs a stage: its name, but candidates are gathered by ``propose``."""
    return "propose" if stage == "gather" else stage
