"""What a campaign's answers come to: labels, where they come from, and the needles by round."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack import files
from haystack.errors import InputError

if TYPE_CHECKING:
    from haystack.annotate.labels import Labels
    from haystack.pipeline.export import ExportLabels
    from haystack.pipeline.workspace import Workspace

PICTURES = "pictures"


@dataclass(frozen=True)
class Answers:
    """The answers of a campaign, resolved.

    Args:
        resolved: labels by the stated rule, and what was left out.
        labels: image id -> labels, as the export writes them.
        provenance: see ``haystack.io.provenance``.
        asked: (round, predicate) -> questions that were answered, other than by a skip, and the
            needles among them.
        events: number of events, by which two readings of a database are told apart.
    """

    resolved: Labels
    labels: Mapping[str, ExportLabels]
    provenance: list[dict[str, Any]]
    asked: Mapping[tuple[int, int], tuple[int, int]]
    events: int

    def counts(self) -> dict[str, int]:
        """What is labelled and what was left out, in numbers."""
        images = self.resolved.images.values()
        return {
            "relations": sum(len(image.positives) for image in images),
            "negatives": sum(len(image.negatives) for image in images),
            "no_relation_pairs": sum(len(image.no_relation) for image in images),
            "faulty_segments": sum(len(image.faulty) for image in images),
            "disagreements_left_out": len(self.resolved.disagreements),
            "rows_with_faulty_segments_left_out": self.resolved.dropped,
            "contradictions_of_one_annotator": len(self.resolved.contradictions),
            "skipped": self.resolved.skipped,
        }


def read_answers(workspace: Workspace, database: str, *, pseudonyms: bool = False) -> Answers:
    """Read the answers of a workspace's database.

    Args:
        workspace: the campaign.
        database: a file or URL.
        pseudonyms: leave people's names out of the provenance.

    Raises:
        InputError: there is no database, or it was answered on other segments.
    """
    from haystack.annotate.labels import resolve
    from haystack.annotate.provenance import provenance_rows
    from haystack.annotate.store import event_log
    from haystack.annotate.store.store import AnnotationStore
    from haystack.cli.truth import check_answered
    from haystack.pipeline.export import ExportLabels
    from haystack.scene_graph import as_triplets

    require_database(database, workspace.root)
    with AnnotationStore(database) as store:
        answers = list(store.answers())
        gold = store.gold_items()
        names = event_log.pseudonyms(store.database) if pseudonyms else None
        wording = event_log.wordings_shown(store.database, workspace.vocabulary.annotator_name)
        events = store.event_count()
    check_answered(workspace, answers)
    resolved = resolve(answers, gold)
    outcomes = {(row.image_id, *row.row): row.outcome for row in resolved.decisions}
    rounds: dict[tuple[str, int, int, int], int] = {}
    for answer in answers:
        if answer.verdict != "skip":
            asked = answer.proposal
            question = (asked.image_id, asked.subject, asked.object, asked.predicate)
            rounds[question] = min(asked.round, rounds.get(question, asked.round))
    counts: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for question, number in rounds.items():
        counts[number, question[3]][0] += 1
        counts[number, question[3]][1] += outcomes.get(question) == "positive"
    return Answers(
        resolved,
        {
            image_id: ExportLabels(
                relations=as_triplets(image.positives),
                neg_relations=as_triplets((*image.negatives, *image.no_relation)),
                faulty=image.faulty,
            )
            for image_id, image in resolved.images.items()
        },
        provenance_rows(resolved, answers, wording, names),
        {key: (asked, needles) for key, (asked, needles) in sorted(counts.items())},
        events,
    )


def require_database(database: str, workspace: Path) -> None:
    """Refuse a database file that does not exist, rather than make an empty one.

    Raises:
        InputError: there is none.
    """
    if "://" not in database and not Path(database).is_file():
        raise InputError(f"no answers yet; run: haystack annotate {workspace}", path=database)


def keep_answers(
    workspace: Workspace, answers: Answers, folder: Path, measured: Collection[str]
) -> int:
    """Write the labels as a data set to train on: all of it or nothing.

    Unlike ``export/``, which is made anew whenever somebody asks for it, it never changes.

    Args:
        workspace: the campaign.
        answers: what to write.
        folder: appears when all is written.
        measured: ids of images on which models are measured; listed as test images, so that
            nothing is learned from them.

    Returns:
        How many of the labelled images are measured on.
    """
    from haystack.io.provenance import of_dataset, provenance_file, write_provenance
    from haystack.io.psg_writer import mask_file, write_psg
    from haystack.pipeline.export import export_dataset
    from haystack.pipeline.jobs.upstream import upstream_checksums

    upstream_checksums(workspace, "segment", workspace.source.shards())
    files.make_folder(folder.parent)
    for stray in folder.parent.glob(f".tmp-*-{folder.name}"):  # of a run that was killed
        shutil.rmtree(stray, ignore_errors=True)
    temporary = files.temporary_name(folder)
    images = []
    for image in workspace.segmented_images(answers.labels):
        files.write_bytes(temporary / mask_file(image.image_id), image.panoptic)
        images.append(image)
    dataset = export_dataset(images, answers.labels, workspace.vocabulary)
    graphs = tuple(
        replace(graph, file_name=_picture(workspace, graph.file_name, graph.image_id, folder))
        for graph in dataset.graphs
    )
    kept_out = tuple(graph.image_id for graph in graphs if graph.image_id in measured)
    dataset = replace(dataset, graphs=graphs, test_image_ids=kept_out)
    annotations = temporary / "annotation.json"
    write_psg(dataset, annotations)
    write_provenance(provenance_file(annotations), of_dataset(answers.provenance, dataset))
    os.rename(temporary, folder)
    files.sync_folder(folder.parent)
    return len(kept_out)


def _picture(workspace: Workspace, image_key: str, image_id: str, folder: Path) -> str:
    """Where a picture lies as seen from ``folder``; one inside a tar is taken out first."""
    from haystack.io.psg_writer import mask_file

    place = Path(workspace.config.source.images) / image_key
    if not place.is_file():
        name = Path(mask_file(image_id)).stem + Path(image_key).suffix
        place = folder.parent.parent / PICTURES / name  # of all rounds
        if not place.is_file():
            files.write_bytes(place, workspace.source.read(image_key))
    return Path(os.path.relpath(place, folder)).as_posix()
