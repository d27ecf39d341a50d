"""Verbs around the answers: ``annotate`` and ``export``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from haystack.cli.outcome import Outcome
from haystack.cli.stages import (
    add_database_argument,
    add_workspace_arguments,
    database_of,
    open_workspace,
    stage_outcome,
)
from haystack.errors import InputError
from haystack.text import table, without_folders

if TYPE_CHECKING:
    from haystack.annotate.records import Proposal
    from haystack.annotate.settings import QueueSettings
    from haystack.annotate.store.store import AnnotationStore
    from haystack.pipeline.workspace import Workspace
    from haystack.scene_graph import SceneGraphDataset


PORT = 8765
"""Where the annotation page is served, unless told otherwise."""


def add_verbs(verbs: Any) -> None:
    """Declare the verbs."""
    annotate = verbs.add_parser(
        "annotate", help="answer proposals on a web page", description=_annotate.__doc__
    )
    add_workspace_arguments(annotate)
    add_database_argument(annotate)
    annotate.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; for all but this machine's own people log in (haystack "
        "annotators), 0.0.0.0 means all",
    )
    annotate.add_argument("--port", type=int, default=PORT, help="port, or the next free one")
    annotate.add_argument(
        "--public-url", metavar="URL", help="what people open, where a proxy stands in front"
    )
    annotate.add_argument(
        "--annotator", default="annotator", help="name to answer under, where nobody logs in"
    )
    annotate.add_argument(
        "--round",
        type=int,
        help="recorded with the proposals (default: that of the last haystack campaign next)",
    )
    annotate.add_argument(
        "--prepare",
        action="store_true",
        help="ask nothing: serve the pages that come before proposals, to choose clusters and name "
        "predicates",
    )
    annotate.add_argument(
        "--hide-classes",
        action="store_true",
        help="on the names page, do not tell what the two objects are",
    )
    annotate.add_argument(
        "--gold",
        metavar="A.json",
        help="hide questions whose answer these annotations know among the others, to measure "
        "annotators (annotate.gold_rate, annotate.gold_items)",
    )
    simulation = annotate.add_argument_group("simulation (no page)")
    simulation.add_argument(
        "--answers-from", metavar="A.json", help="answer from these annotations, then end"
    )
    simulation.add_argument("--limit", type=int, help="answers per predicate; default: all")
    simulation.add_argument("--predicates", nargs="+", help="only these; default: all")
    simulation.add_argument(
        "--unannotated",
        choices=("skip", "incorrect"),
        default="skip",
        help="what to say where the annotations say nothing (default: skip)",
    )
    annotate.set_defaults(run=_annotate)

    export = verbs.add_parser(
        "export", help="answers as a PSG-compatible data set", description=_export.__doc__
    )
    add_workspace_arguments(export)
    add_database_argument(export)
    export.add_argument(
        "--test-split", action="store_true", help="list the exported images in test_image_ids"
    )
    export.add_argument(
        "--integer-ids", action="store_true", help="write image ids as integers, not text"
    )
    export.add_argument(
        "--events",
        action="store_true",
        help="also write all that was said, undone answers as well: events.jsonl, events.parquet",
    )
    export.add_argument(
        "--pseudonyms",
        action="store_true",
        help="write annotator-1, annotator-2, ... in place of annotators' names",
    )
    export.set_defaults(run=_export)


def _annotate(args: argparse.Namespace) -> Outcome:
    """Serve the annotation page of a workspace, or answer from known annotations."""
    from haystack.campaign.rounds import current_round
    from haystack.io import read_psg

    workspace = open_workspace(args)
    if args.prepare:
        return _prepare(args, workspace)
    truth = None
    if args.answers_from is not None:
        truth = read_psg(args.answers_from, vocabulary=workspace.vocabulary)
    gold = None
    if args.gold is not None:
        gold = read_psg(args.gold, vocabulary=workspace.vocabulary)
    number = current_round(workspace.root) if args.round is None else args.round
    with load_queue(workspace, database_of(args), truth, round_number=number) as store:
        workspace.save()
        if gold is not None:
            _hide_gold(workspace, store, gold)
        if truth is not None:
            return _simulate(args, workspace, store, truth)
        return _serve(args, workspace, store)


def load_queue(
    workspace: Workspace,
    database: str,
    truth: SceneGraphDataset | None = None,
    *,
    round_number: int,
) -> AnnotationStore:
    """The store with the workspace's queue in it; answers and leases stay.

    Args:
        workspace: the campaign.
        database: a file or URL.
        truth: annotations that will answer; checked to be of the same segments.
        round_number: recorded with the proposals.

    Raises:
        InputError: the queue is outdated, or images were answered on other segments.
    """
    from haystack.annotate.records import Proposal
    from haystack.annotate.simulate import SteppingClock
    from haystack.annotate.store.store import AnnotationStore
    from haystack.cli.truth import check_segments
    from haystack.pipeline.jobs.gather import GatherJob
    from haystack.pipeline.jobs.upstream import ALL, finished, upstream_checksums
    from haystack.times import utc_now

    # Outdated scores or segments would show other objects than the queue asks about.
    shards = workspace.source.shards()
    upstream_checksums(workspace, "score", shards)
    upstream_checksums(workspace, "gather", GatherJob(workspace, shards).shards())
    upstream_checksums(workspace, "propose", [ALL])
    proposals = workspace.proposals()
    models = [
        f"{without_folders(model['name'])} {model['hash'][:12]}"
        for model in finished(workspace, "propose", ALL).notes["models"]
    ]
    if truth is not None:
        known = truth.by_id()
        check_segments(workspace.segments_of(known), known)
    # A stepping clock makes simulated campaigns repeatable to the byte.
    clock = utc_now if truth is None else SteppingClock()
    store = AnnotationStore(database, clock=clock, settings=_queue_settings(workspace))
    store.load_proposals(
        (
            Proposal(
                image_id=p.image_id,
                image_key=p.image_key,
                subject=p.subject,
                object=p.object,
                predicate=p.predicate,
                score=p.score,
                cluster=p.cluster,
                rank=p.rank,
                segments=p.segments,
                origin=p.origin(models),
            )
            for p in proposals
        ),
        round=round_number,
        asked=workspace.predicate_indices(),
    )
    return store


def _queue_settings(workspace: Workspace) -> QueueSettings:
    from haystack.annotate.settings import QueueSettings

    chosen = workspace.config.annotate
    number = workspace.vocabulary.predicate_index
    return QueueSettings(
        copies=chosen.copies,
        share=chosen.share,
        copies_of={number(name): n for name, n in chosen.copies_by_name().items()},
        tie_breaker=chosen.adjudication == "annotator",
        lease_seconds=chosen.lease_seconds,
        gold_rate=chosen.gold_rate,
        repeat_rate=chosen.repeat_rate,
        repeat_after=chosen.repeat_after,
    )


def _hide_gold(workspace: Workspace, store: AnnotationStore, known: SceneGraphDataset) -> None:
    """Make questions gold items whose answer is known; the same ones whenever this runs."""
    from haystack.annotate.store.gold import choose_gold
    from haystack.cli.truth import check_segments, truth_from

    graphs = known.by_id()
    check_segments(workspace.segments_of(graphs), graphs)
    chosen = choose_gold(store.queued(), truth_from(known), workspace.config.annotate.gold_items)
    if not chosen:
        raise InputError(
            "expected annotations that answer some of the questions, these answer none; gold "
            "items come from images of the campaign"
        )
    set_already = {item.proposal.id for item in store.gold_items()}
    store.set_gold({i: v for i, v in chosen.items() if i not in set_already}, "gold file")


def _simulate(
    args: argparse.Namespace,
    workspace: Workspace,
    store: AnnotationStore,
    truth: SceneGraphDataset,
) -> Outcome:
    from haystack.annotate.simulate import answer_from_truth
    from haystack.cli.truth import truth_from

    predicates = args.predicates
    if predicates is not None:
        predicates = [workspace.vocabulary.predicate_index(name) for name in predicates]
    report = answer_from_truth(
        store,
        truth_from(truth),
        limit=args.limit,
        predicates=predicates,
        unannotated=args.unannotated,
    )
    names = workspace.vocabulary.predicate_classes
    per_predicate = {
        names[predicate]: {
            "answers": len(verdicts),
            "correct": verdicts.count("correct"),
            "verdicts": list(verdicts),
        }
        for predicate, verdicts in report.verdicts.items()
    }
    rows = [(name, counts["answers"], counts["correct"]) for name, counts in per_predicate.items()]
    text = "\n".join(
        (
            *table(("predicate", "answers", "correct"), rows),
            "",
            f"{report.answers} answers, {report.positives} correct; of {report.unannotated} the "
            f"annotations say nothing ({args.unannotated})",
        )
    )
    data = {
        "answers": report.answers,
        "correct": report.positives,
        "unannotated": report.unannotated,
        "per_predicate": per_predicate,
    }
    return Outcome(text, data)


def _prepare(args: argparse.Namespace, workspace: Workspace) -> Outcome:
    """Serve the pages that need no proposals."""
    from haystack.annotate.store.store import AnnotationStore
    from haystack.cli.pages import require_clusters

    if args.answers_from is not None:
        raise InputError("expected --prepare or --answers-from, got both; there is nothing to ask")
    require_clusters(workspace)
    workspace.save()
    with AnnotationStore(database_of(args)) as store:
        _run_service(args, workspace, store)
    return Outcome("stopped", {})


def _serve(args: argparse.Namespace, workspace: Workspace, store: AnnotationStore) -> Outcome:
    if not store.progress():
        raise InputError(
            "the queue is empty: haystack propose found nothing to ask (it says why); to look at "
            f"the clusters, run: haystack annotate {args.workspace} --prepare",
            path=args.workspace,
        )
    _run_service(args, workspace, store)
    answered = sum(p.total - p.open for p in store.progress().values())
    return Outcome(f"stopped; {answered} proposals are answered", {"answered": answered})


def _run_service(args: argparse.Namespace, workspace: Workspace, store: AnnotationStore) -> None:
    from haystack.annotate.service.app import create_app
    from haystack.annotate.service.media import Caption
    from haystack.annotate.service.server import serve
    from haystack.annotate.service.site import Site
    from haystack.cli.pages import pages_of
    from haystack.cli.yields import progress_part
    from haystack.pipeline.media import WorkspaceMedia

    class CampaignMedia(WorkspaceMedia):
        """The workspace's pictures, and the names that annotators read."""

        def caption(self, proposal: Proposal) -> Caption:
            pair = (proposal.subject, proposal.object)
            return Caption(*self.class_names(proposal.image_key, *pair))

    names = [
        workspace.vocabulary.annotator_name(p) for p in range(workspace.vocabulary.num_predicates)
    ]
    site = Site(args.host, args.public_url)
    app = create_app(
        store,
        CampaignMedia(workspace),
        names,
        annotator=args.annotator,
        site=site,
        parts=[
            *pages_of(workspace, store, hide_classes=args.hide_classes),
            progress_part(workspace, store),
        ],
    )
    serve(app, args.port)


def _export(args: argparse.Namespace) -> Outcome:
    """Write what people answered as PSG annotations with explicit negatives and panoptic PNGs.

    Beside them lies where each label comes from (annotation.provenance.parquet).
    """
    from haystack.campaign.answers import read_answers
    from haystack.executors.local import LocalExecutor
    from haystack.pipeline.jobs.export import ExportJob
    from haystack.pipeline.workspace import EXPORTED

    workspace, database = open_workspace(args), database_of(args)
    answers = read_answers(workspace, database, pseudonyms=args.pseudonyms)
    workspace.save()
    job = ExportJob(
        workspace,
        answers.labels,
        provenance=answers.provenance,
        as_test_split=args.test_split,
        integer_ids=args.integer_ids,
    )
    ran = stage_outcome(LocalExecutor(workspace.root).run(job))
    counts = answers.counts()
    if args.events:
        counts["events"] = _write_events(workspace, database, pseudonyms=args.pseudonyms)
    out = workspace.root / EXPORTED
    lines = [f"{key.replace('_', ' ')}: {value}" for key, value in counts.items()]
    text = "\n".join((f"wrote {len(answers.labels)} images to {out}", *lines))
    return Outcome(text, {"out": out, "images": len(answers.labels), **counts, "stage": ran.data})


def _write_events(workspace: Workspace, database: str, *, pseudonyms: bool) -> int:
    """Write all that was said, beside the export; the number of events."""
    from itertools import chain

    from haystack.annotate.event_files import write_jsonl, write_parquet
    from haystack.annotate.store import event_log
    from haystack.annotate.store.store import AnnotationStore

    predicates = workspace.vocabulary.predicate_classes
    folder = workspace.root / "export"
    # People may answer meanwhile: both files are of one state, in which everybody has a pseudonym.
    with AnnotationStore(database) as store, store.database.snapshot() as state:
        names = event_log.pseudonyms(state) if pseudonyms else None
        said = event_log.event_records
        everything = chain(said(state), event_log.other_records(state))
        write_jsonl(folder / "events.jsonl", event_log.renamed(everything, names), predicates)
        events = event_log.renamed(said(state), names)
        return write_parquet(folder / "events.parquet", events, predicates)
