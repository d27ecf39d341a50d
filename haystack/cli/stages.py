"""Verbs of a campaign's stages: ``embed cluster segment score propose``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack.cli.executors import add_executor_arguments, chosen_executor
from haystack.cli.outcome import FAILURE, OK, QUARANTINED, Outcome
from haystack.cli.sweep import add_sweep_argument, with_table
from haystack.errors import InputError
from haystack.text import table

if TYPE_CHECKING:
    from haystack.executors.base import Job, RunSummary
    from haystack.models.relation.protocol import RelationModel
    from haystack.pipeline.config import WorkspaceConfig
    from haystack.pipeline.workspace import Workspace

_HELP = {
    "embed": "one feature vector an image",
    "cluster": "k-means over the features, and contact sheets",
    "segment": "panoptic masks",
    "score": "score every pair of segments, keep the best per cluster and predicate",
    "propose": "rank the queue, one predicate at a time",
}
_BY_SHARD = ("embed", "segment", "score")  # the others are one shard


def add_verbs(verbs: Any) -> None:
    """Declare the verbs."""
    for stage, summary in _HELP.items():
        verb = verbs.add_parser(
            stage,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}. A workspace is a folder holding one "
            "campaign; run a stage again and it resumes, or redoes what a changed input or setting "
            "touches.",
        )
        add_workspace_arguments(verb)
        if stage == "cluster":
            add_sweep_argument(verb)
        if stage in ("score", "propose"):
            add_database_argument(verb)
        if stage in _BY_SHARD:
            add_executor_arguments(verb)
        verb.set_defaults(run=_run_cluster if stage == "cluster" else _run_stage)


def add_workspace_arguments(verb: argparse.ArgumentParser) -> None:
    """The folder, the configuration file, and the ``key=value`` overrides."""
    verb.add_argument("workspace", type=Path, help="folder of the campaign, made if missing")
    verb.add_argument("settings", nargs="*", metavar="key=value", help="for example cluster.k=16")
    verb.add_argument("--config", help="YAML file, or one of Haystack's own, e.g. pipeline/sa1b")


def add_database_argument(verb: argparse.ArgumentParser) -> None:
    """Where the answers are."""
    verb.add_argument(
        "--database", help="SQLAlchemy URL; default: annotations.db in the workspace (SQLite)"
    )


def open_workspace(args: argparse.Namespace) -> Workspace:
    """The workspace of a verb's arguments; its settings are not saved yet."""
    from haystack.cli.configs import find_config
    from haystack.pipeline.workspace import Workspace

    config = None if args.config is None else find_config(args.config)
    return Workspace.configured(args.workspace, config_file=config, overrides=args.settings)


def save_settings(workspace: Workspace) -> None:
    """Save the settings; a stage that is started at the same moment loses none of its own."""
    from haystack.executors.locks import LOCK, locked

    with locked(workspace.root / LOCK, wait=True):
        workspace.save()


def database_of(args: argparse.Namespace) -> str:
    """The database URL or path of a verb's arguments."""
    return args.database or str(args.workspace / "annotations.db")


def stage_outcome(summary: RunSummary) -> Outcome:
    """What a stage's run means for people, programs and the shell."""
    text = str(summary)
    if summary.quarantined:
        text += "; reasons in quarantine.jsonl of the workspace"
    data = {
        "stage": summary.stage,
        "shards_done": summary.done,
        "shards_skipped": summary.skipped,
        "shards_failed": [vars(failed) for failed in summary.failed],
        "shards_elsewhere": summary.elsewhere,
        "inputs": summary.inputs,
        "ok": summary.ok,
        "quarantined": summary.quarantined,
        "seconds": summary.seconds,
    }
    if summary.failed:
        return Outcome(text, data, FAILURE)
    return Outcome(text, data, QUARANTINED if summary.quarantined else OK)


@dataclass(frozen=True)
class StageRecipe:
    """A verb's job as plain data, so that other processes build the same one.

    The settings travel along: a worker that starts later must not read changed ones.

    Args:
        root: the workspace.
        verb: the stage.
        config: the settings of all stages.
        database: where the answers are.
    """

    root: Path
    verb: str
    config: WorkspaceConfig
    database: str

    @classmethod
    def of(cls, workspace: Workspace, args: argparse.Namespace) -> StageRecipe:
        """The recipe of a verb's arguments; paths are absolute, whatever folder a worker is in."""
        database = getattr(args, "database", None) or str(workspace.root / "annotations.db")
        if "://" not in database:
            database = os.path.abspath(database)
        root = Path(os.path.abspath(workspace.root))
        return cls(root, args.verb, workspace.config, database)

    def __call__(self, device: str | None = None) -> Job:
        """Build the job."""
        from haystack.pipeline.workspace import Workspace

        config = self.config
        if device is not None:
            section = replace(getattr(config, self.verb), device=device)
            config = replace(config, **{self.verb: section})
        return _BUILD[self.verb](Workspace(self.root, config), self.database)


def _run_stage(args: argparse.Namespace) -> Outcome:
    with chosen_executor(args) as chosen:
        workspace = open_workspace(args)
        recipe = StageRecipe.of(workspace, args)
        configured = getattr(getattr(workspace.config, args.verb), "device", "")
        job = recipe(chosen.device_for(configured))
        executor = chosen.make(configured)
        if args.verb == "propose":
            executor.run(_gather_job(workspace))
        # Settings that a stage refuses, or whose run another one keeps out, are not remembered.
        summary = executor.run(job, recipe, begun=lambda: save_settings(workspace))
        outcome = chosen.outcome(stage_outcome(summary))
    if args.verb == "propose":
        outcome = _with_queue(workspace, outcome)
    return replace(outcome, text="\n".join([outcome.text, *_for_other_stages(args)]))


def _for_other_stages(args: argparse.Namespace) -> list[str]:
    """What to run for settings of other stages to take effect: a line a stage."""
    keys = [setting.partition("=")[0] for setting in args.settings]
    lines = []
    for stage in _HELP:
        others = [key for key in keys if key.startswith(f"{stage}.") and stage != args.verb]
        if others:
            lines.append(
                f"{', '.join(others)}: remembered, and takes effect when this runs: "
                f"haystack {stage} {args.workspace}"
            )
    return lines


def _run_cluster(args: argparse.Namespace) -> Outcome:
    if args.sweep is None:
        return _run_stage(args)
    from haystack.executors.local import LocalExecutor
    from haystack.pipeline.jobs.sweep import SweepJob

    workspace = open_workspace(args)
    job = SweepJob(workspace, workspace.source.shards(), args.sweep)
    summary = LocalExecutor(workspace.root).run(job, begun=lambda: save_settings(workspace))
    return with_table(stage_outcome(summary), job)


def _with_queue(workspace: Workspace, outcome: Outcome) -> Outcome:
    """The outcome of ``propose`` with the length of each predicate's queue."""
    names = workspace.vocabulary.predicate_classes
    queue = dict.fromkeys((names[p] for p in workspace.predicate_indices()), 0)
    for proposal in workspace.proposals():
        queue[names[proposal.predicate]] += 1
    models = _proposing(workspace)
    by = " and ".join(models) + (", by the mean of their ranks" if len(models) > 1 else "")
    lines = [
        outcome.text,
        f"scored by {by}",
        *table(("predicate", "proposals"), list(queue.items())),
    ]
    for cluster, predicate, count in _used_up(workspace):
        lines.append(
            f"the {count} best of cluster {cluster} for '{names[predicate]}' are used up; to go on "
            f"there, run: haystack score {workspace.root}"
        )
    empty = [name for name, count in queue.items() if not count]
    if empty:
        least = workspace.config.score.min_count
        lines.append(
            f"nothing to propose for: {', '.join(empty)}; every candidate is answered, faulty or "
            "filtered out"
        )
        if least:
            lines.append(
                f"the filter asks that score.statistics holds the subject's class with the "
                f"predicate, and the predicate with the object's class, at least {least} times; "
                "score again with a lower score.min_count (0 = no filter) or larger statistics"
            )
    return Outcome(
        "\n".join(lines), {**outcome.data, "models": models, "queue": queue}, outcome.exit_code
    )


def _proposing(workspace: Workspace) -> list[str]:
    """Names of the models whose scores the queue follows."""
    from haystack.pipeline.jobs.upstream import ALL, finished

    return [model["name"] for model in finished(workspace, "propose", ALL).notes["models"]]


def _used_up(workspace: Workspace) -> list[tuple[int, int, int]]:
    """Groups of which all kept candidates are answered: (cluster, predicate, how many)."""
    from haystack.executors.manifest import read_manifest
    from haystack.pipeline.jobs.upstream import ALL

    manifest = read_manifest(workspace.root, "propose", ALL)
    return [] if manifest is None else [tuple(row) for row in manifest.notes["exhausted"]]


def _embed_job(workspace: Workspace, database: str) -> Job:
    from haystack.pipeline.encoders.encoder import find_encoder
    from haystack.pipeline.jobs.embed import EmbedJob

    return EmbedJob(workspace, workspace.source, find_encoder(workspace.config.embed))


def _cluster_job(workspace: Workspace, database: str) -> Job:
    from haystack.pipeline.jobs.cluster import ClusterJob

    return ClusterJob(workspace, workspace.source)


def _segment_job(workspace: Workspace, database: str) -> Job:
    from haystack.pipeline.jobs.segment import SegmentJob
    from haystack.pipeline.segmenters.factory import open_segmenter

    source = workspace.source
    segmenter = open_segmenter(workspace.config.segment, workspace.vocabulary, source.keys())
    return SegmentJob(workspace, source, segmenter)


def _score_job(workspace: Workspace, database: str) -> Job:
    from haystack.io import read_psg
    from haystack.models.relation.overlap import OverlapFilter
    from haystack.models.relation.references import ModelReference
    from haystack.pipeline.jobs.score import ScoreJob, ScoringModel
    from haystack.statistics import TripletStatistics

    config, vocabulary = workspace.config.score, workspace.vocabulary

    def scoring(name: str) -> ScoringModel:
        reference = ModelReference.parse(name)

        def load() -> RelationModel:
            model, _ = reference.load(vocabulary, config.device)
            if config.overlap == "none":
                return model
            return OverlapFilter(model, config.overlap)  # type: ignore[arg-type]  # by ScoreConfig

        digest = f"{reference.fingerprint()}, overlap {config.overlap}"
        return ScoringModel(str(reference), digest, load)

    model = scoring(_required(workspace, "score.model", config.model))
    second = scoring(config.second_model) if config.second_model else None
    counted = read_psg(
        _required(workspace, "score.statistics", config.statistics), vocabulary=vocabulary
    )
    answered, faulty = _known(workspace, database)

    return ScoreJob(
        workspace,
        workspace.source.shards(),
        model=model,
        second=second,
        statistics=TripletStatistics.from_graphs(
            counted.split(config.split),  # type: ignore[arg-type]  # checked by ScoreConfig
            vocabulary.num_objects,
            vocabulary.num_predicates,
        ),
        answered=answered,
        faulty=faulty,
    )


def _propose_job(workspace: Workspace, database: str) -> Job:
    from haystack.pipeline.jobs.propose import ProposeJob

    answered, faulty = _known(workspace, database)
    blocks = _gather_job(workspace).shards()
    return ProposeJob(workspace, blocks, answered=answered, faulty=faulty)


def _gather_job(workspace: Workspace) -> Job:
    from haystack.pipeline.jobs.gather import GatherJob

    return GatherJob(workspace, workspace.source.shards())


_BUILD: dict[str, Callable[[Workspace, str], Job]] = {
    "embed": _embed_job,
    "cluster": _cluster_job,
    "segment": _segment_job,
    "score": _score_job,
    "propose": _propose_job,
}


def _required(workspace: Workspace, key: str, value: str) -> str:
    if not value:
        raise InputError(
            f"the setting {key} is empty; give {key}=... once, the workspace remembers it",
            path=workspace.root,
        )
    return value


def _known(
    workspace: Workspace, database: str
) -> tuple[set[tuple[str, int, int, int]], set[tuple[str, int]]]:
    """What was answered (image id, subject, object, predicate) and which segments are faulty.

    Questions that others should still answer, skipped ones too, are among what was answered: they
    are not proposed anew, since they stay in the queue (see ``AnnotationStore.load_proposals``).
    """
    if "://" not in database and not Path(database).is_file():
        return set(), set()
    from haystack.annotate.labels import resolve
    from haystack.annotate.store.store import AnnotationStore
    from haystack.cli.truth import check_answered
    from haystack.scene_graph import NO_RELATION

    with AnnotationStore(database) as store:
        answers, gold = list(store.answers()), store.gold_items()
    check_answered(workspace, answers)
    answered = set()
    said = [(answer.proposal, answer.verdict) for answer in answers]
    said += [(item.proposal, item.verdict) for item in gold]
    for asked, verdict in said:
        pair = (asked.image_id, asked.subject, asked.object)
        answered.add((*pair, asked.predicate))
        if verdict == "no_relation":  # which answers for every predicate
            answered.add((*pair, NO_RELATION))
    images = resolve(answers, gold).images.values()
    return answered, {(image.image_id, segment) for image in images for segment in image.faulty}
