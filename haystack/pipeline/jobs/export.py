"""The export stage as a job: which files it writes, and what its output depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from haystack import files
from haystack.executors.base import Counts, Outputs
from haystack.io.provenance import of_dataset, provenance_file, write_provenance
from haystack.io.psg import FAULTY_SEGMENTS
from haystack.io.psg_writer import mask_file, write_psg
from haystack.pipeline.export import ExportLabels, export_dataset
from haystack.pipeline.jobs.upstream import ALL, upstream_checksums
from haystack.pipeline.tables import SegmentedImage
from haystack.pipeline.workspace import EXPORTED, Workspace


class ExportJob:
    """Write ``export/``: annotation file, panoptic PNGs, list of faulty segments, provenance.

    Args:
        workspace: the campaign.
        labels: image id -> labels.
        provenance: records of ``haystack.io.provenance``; those of rows that are not exported
            (because the data calls a segment faulty) are left out.
        as_test_split: see :func:`export_dataset`.
        integer_ids: write image ids as integers, as the Haystack authors' script needs them.
    """

    name: ClassVar[str] = "export"

    def __init__(
        self,
        workspace: Workspace,
        labels: Mapping[str, ExportLabels],
        *,
        provenance: Sequence[Mapping[str, Any]] = (),
        as_test_split: bool = False,
        integer_ids: bool = False,
    ) -> None:
        self._workspace = workspace
        self._labels = labels
        self._provenance = provenance
        self._as_test_split = as_test_split
        self._integer_ids = integer_ids

    def shards(self) -> Sequence[str]:
        """One: the data set."""
        return [ALL]

    def inputs(self, shard: str) -> Mapping[str, str]:
        """The segmentation."""
        return upstream_checksums(self._workspace, "segment", self._workspace.source.shards())

    def fingerprint(self, shard: str) -> Mapping[str, Any]:
        """The answers, and the way of writing."""
        labels = {
            image_id: [label.relations.tolist(), label.neg_relations.tolist(), label.faulty]
            for image_id, label in self._labels.items()
        }
        return {
            "labels": files.sha256_text(files.canonical_json(labels)),
            "provenance": files.sha256_text(files.canonical_json(self._provenance)),
            "as_test_split": self._as_test_split,
            "integer_ids": self._integer_ids,
        }

    def run(self, shard: str, out: Outputs) -> Counts:
        """Write the data set."""

        def labelled() -> Iterable[SegmentedImage]:
            for image in self._workspace.segmented_images(self._labels):
                png = out.path(f"export/{mask_file(image.image_id)}")
                png.write_bytes(image.panoptic)
                out.advance()
                yield image

        dataset = export_dataset(
            labelled(),
            self._labels,
            self._workspace.vocabulary,
            as_test_split=self._as_test_split,
        )
        write_psg(
            dataset,
            out.path(EXPORTED),
            integer_ids=self._integer_ids,
            faulty_path=(
                out.path(f"export/{FAULTY_SEGMENTS}") if dataset.faulty_segments else None
            ),
        )
        write_provenance(
            out.path(provenance_file(EXPORTED).as_posix()), of_dataset(self._provenance, dataset)
        )
        return Counts(inputs=len(self._labels), ok=len(dataset))
