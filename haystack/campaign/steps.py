"""The steps of a round, in order; each goes on where a killed run of it stopped.

A step is done when the round's folder holds its result. Training and the stages resume by
themselves; what the others make appears all at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from haystack.campaign.answers import Answers, keep_answers, read_answers
from haystack.campaign.report import measurement, report_of, report_text
from haystack.campaign.rounds import PROPOSED, Round
from haystack.cli.outcome import FAILURE, Outcome
from haystack.cli.verbs import run_verb, spelled
from haystack.config import read_key
from haystack.errors import HaystackError, InputError
from haystack.models.relation.references import ModelReference
from haystack.pipeline.config import CampaignConfig
from haystack.pipeline.workspace import Workspace

Result = dict[str, Any]


@dataclass
class Work:
    """What the steps of a round share.

    Args:
        workspace: the campaign.
        database: where the answers are, a file or URL.
        round: which is worked on.
        executor: command-line options of the stage ``score``.
    """

    workspace: Workspace
    database: str
    round: Round
    executor: Sequence[str] = ()

    @property
    def config(self) -> CampaignConfig:
        """How it retrains and measures."""
        return self.workspace.config.campaign

    @property
    def before(self) -> str:
        """The model that proposed the questions which were answered."""
        if self.round.is_begun:
            return str(self.round.beginning()["model"])
        return self.workspace.config.score.model

    @property
    def after(self) -> str:
        """The model that is trained: its file, or the class of one's own with its weights."""
        plugin, run = own_class(self.before), self.round.folder / "model"
        return f"{plugin}@{run}" if plugin else str(run / "model.safetensors")

    @property
    def stage_options(self) -> tuple[str, ...]:
        """Where the answers are, for stages that leave them out."""
        return ("--database", self.database)

    def train_words(self) -> list[str]:
        """The command that trains.

        Raises:
            InputError: nothing says how, or there is nothing that could be trained.
        """
        config, folder, plugin = self.config, self.round.folder, own_class(self.before)
        goes_on = config.start == "last"
        words = ["train", self._recipe(), *config.settings]
        if config.annotations:
            words.append(f"annotations={config.annotations}")
        words.append(f"mix={json.dumps([str(folder / 'answers')])}")
        words.append(f"on_conflict={config.on_conflict}")
        if plugin:
            words += ["init=null", "--model", self.before if goes_on else plugin]
        else:
            words.append(f"init={self.before if goes_on else 'null'}")
        return [*words, "--out", str(folder / "model")]

    def _recipe(self) -> str:
        """The configuration of the training: the one given, or that of the model that proposed."""
        reference = ModelReference.parse(self.before)
        weights = reference.weights or (None if reference.factory else reference.file)
        beside = None if weights is None else weights.parent / "config.yaml"
        if beside is not None and not beside.is_file():
            beside = None
        counted = beside is not None and read_key(beside, "kind") == "frequency"
        if counted and (self.config.start == "last" or not self.config.train):
            raise InputError(
                "the frequency baseline proposed, and there is nothing in it to go on from; give "
                "campaign.start=scratch campaign.train=CONFIG, for example train/vctree_psg_mini",
                path=self.workspace.root,
            )
        if not self.config.train and beside is None:
            raise InputError(
                f"nothing says how {self.before} was trained; give campaign.train=CONFIG, for "
                "example campaign.train=train/vctree_psg_mini",
                path=self.workspace.root,
            )
        return self.config.train or str(beside)

    def score_words(self) -> list[str]:
        """The command that scores."""
        return [
            *("score", str(self.workspace.root), f"score.model={self.after}"),
            *self.stage_options,
            *self.executor,
        ]

    def propose_words(self) -> list[str]:
        """The command that proposes."""
        return ["propose", str(self.workspace.root), *self.stage_options]


def own_class(model: str) -> str:
    """``file.py:Class`` or ``package.module:factory`` of a model's name; "" for a file."""
    reference = ModelReference.parse(model)
    source = reference.module or str(reference.file)
    return f"{source}:{reference.factory}" if reference.factory else ""


def _keep(work: Work) -> Result:
    answers = read_answers(work.workspace, work.database)
    _refuse_nothing(work, answers)
    folder = work.round.folder / "answers"
    kept_out = 0
    if not folder.is_dir():
        kept_out = keep_answers(work.workspace, answers, folder, _measured_ids(work))
    else:  # killed between the folder and this step's result
        from haystack.io import read_psg

        kept_out = len(read_psg(folder / "annotation.json").test_image_ids)
    return {"images": len(answers.labels), "kept_out": kept_out, **answers.counts()}


def _refuse_nothing(work: Work, answers: Answers) -> None:
    if not answers.labels:
        raise InputError(
            f"there is no answer to learn from yet; run: haystack annotate {work.workspace.root}",
            path=work.database,
        )


def _measured_ids(work: Work) -> set[str]:
    """Images of a data set that only measures; the test images of one that teaches are known."""
    from haystack.io import read_psg

    if not work.config.measure:
        return set()
    graphs = read_psg(work.config.measure).split(work.config.measure_split)  # type: ignore[arg-type]
    return {graph.image_id for graph in graphs}


def _train(work: Work) -> Result:
    outcome = run_verb(*work.train_words())
    summary = outcome.data.get("summary", {})
    return {
        "model": work.after,
        "images": sum(summary.get("images", ())),
        "conflicts": summary.get("conflicts", 0),
        "steps": summary.get("steps"),
        "values": summary.get("values", {}),
    }


def _measure(work: Work) -> Result:
    models = {"before": work.before, "after": work.after}
    return measurement(work.config, work.round.folder, models)


def _score(work: Work) -> Result:
    return _stage(work.score_words())


def _propose(work: Work) -> Result:
    return _stage(work.propose_words())


def _stage(words: Sequence[str]) -> Result:
    outcome: Outcome = run_verb(*words)
    if outcome.exit_code == FAILURE:
        raise HaystackError(
            "the round stops here, since shards are not done; the next run goes on with: "
            f"{spelled(*words)}"
        )
    kept = ("quarantined", "models", "queue")
    return {name: outcome.data[name] for name in kept if name in outcome.data}


def _load(work: Work) -> Result:
    from haystack.cli.annotate import load_queue

    with load_queue(work.workspace, work.database, round_number=work.round.number) as store:
        progress = store.progress()
    return {"open": sum(one.open for one in progress.values())}


def _report(work: Work) -> Result:
    answers = read_answers(work.workspace, work.database)
    content = report_of(work.workspace, work.round, answers)
    work.round.report(content, report_text(content))
    return {}


@dataclass(frozen=True)
class Step:
    """One step.

    Args:
        name: of its result's file.
        what: for people.
        run: does it.
        command: what it runs, where that is a verb.
    """

    name: str
    what: str
    run: Callable[[Work], Result]
    command: Callable[[Work], Sequence[str]] | None = None


STEPS = (
    Step("answers", "keep the labels of this moment", _keep),
    Step("train", "retrain", _train, Work.train_words),
    Step("measure", "measure the models before and after on images held out", _measure),
    Step("score", "score every pair again", _score, Work.score_words),
    Step(PROPOSED, "rank the queue without what is answered", _propose, Work.propose_words),
    Step("load", "load the queue into the database", _load),
    Step("report", "write the report", _report),
)
