"""The demo's steps: each is an ordinary verb of the command line, and is printed as such.

Cross-fitting: answers on one half of the held-out photographs retrain the model that is measured
on the other half, and the other way round, so that both models of the comparison are measured on
photographs that they have not seen, and on all of them.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import haystack
from haystack.cli.outcome import Outcome
from haystack.cli.verbs import run_verb
from haystack.demo.data import DemoData, prepare, rare_predicates
from haystack.demo.report import Comparison, render_report
from haystack.errors import InputError
from haystack.io import read_psg, write_psg
from haystack.io.prediction_parquet import read_prediction_parquet
from haystack.scene_graph import RelationScores

_MARK = ".haystack-demo"


@dataclass(frozen=True)
class DemoSettings:
    """How much the demo does.

    Args:
        out: folder for everything it makes.
        answers: simulated answers per rare predicate.
        seed: of the first training.
        seeds: trainings that the comparison before and after rests on; seeds count up.
        steps: training steps; None = as the configuration says.
    """

    out: Path
    answers: int = 30
    seed: int = 0
    seeds: int = 3
    steps: int | None = None


def run_demo(settings: DemoSettings) -> Outcome:
    """Run the whole loop, from the beginning, and write ``report.html``.

    Raises:
        InputError: the folder holds something that no demo has made.
    """
    started = time.monotonic()
    out = settings.out
    _clear(out)
    data = prepare(out)
    vocabulary = data.train.vocabulary
    rare = rare_predicates(data.train, data.held_out)
    names = [vocabulary.predicate_classes[predicate] for predicate in rare]
    campaign = out / "campaign"

    trainings = _Trainings(settings)
    _say("Learning relations from the training photographs")
    before = out / "model"
    trainings.run(settings.seed, data.train_folder / "annotation.json", before)

    _say("Searching the held-out photographs")
    run_verb(
        "embed",
        campaign,
        "--config",
        "pipeline/demo",
        f"source.images={data.held_out_folder / 'images'}",
        f"segment.annotations={data.held_out_folder / 'annotation.json'}",
        f"score.model={before / 'model.safetensors'}",
        f"score.statistics={data.train_folder / 'annotation.json'}",
        f"propose.predicates=[{', '.join(names)}]",
    )
    for stage in ("cluster", "segment"):
        run_verb(stage, campaign)
    counting = out / "campaign-by-counting"
    shutil.copytree(campaign, counting)
    for stage in ("score", "propose"):
        run_verb(stage, campaign)
    first_queue = _proposals(campaign)

    _say("Answering as the ground truth would")
    answered = _answer(settings, campaign, data)

    _say("The same search by the frequency baseline, to compare with")
    run_verb(
        "train",
        "train/frequency_psg_mini",
        f"annotations={data.train_folder / 'annotation.json'}",
        "--out",
        out / "model-by-counting",
    )
    run_verb("score", counting, f"score.model={out / 'model-by-counting'}")
    run_verb("propose", counting)
    answered_counting = _answer(settings, counting, data)

    _say("Merging the answers into the training photographs")
    exported = run_verb("export", campaign)
    merged = data.train_folder / "with-answers.json"
    run_verb(
        "merge",
        data.train_folder / "annotation.json",
        campaign / "export" / "annotation.json",
        "--out",
        merged,
    )

    _say("Retraining on the answers, each half of the photographs for the other")
    parts = []
    for number, learned in enumerate(data.folds):
        parts.append(data.train_folder / f"with-answers-{number}.json")
        _keep_answers_of(merged, learned, data, parts[-1])
    comparisons = []
    for seed in range(settings.seed, settings.seed + settings.seeds):
        first = before
        if seed != settings.seed:
            first = out / f"model-seed-{seed}"
            trainings.run(seed, data.train_folder / "annotation.json", first)
        after: dict[str, RelationScores] = {}
        for number, measured in enumerate(data.folds[::-1]):
            retrained = out / f"model-seed-{seed}-retrained-{number}"
            trainings.run(seed, parts[number], retrained)
            scores = _predict(retrained, data)
            after.update({image_id: scores[image_id] for image_id in measured})
        reports = [
            haystack.evaluate(data.held_out, scores.values(), split="all")
            for scores in (_predict(first, data), after)
        ]
        comparisons.append(Comparison(*reports))

    _say("Proposing again with a model retrained on all answers")
    training = [f"seed={settings.seed}", *trainings.settings]
    run_verb(
        *("campaign", "next", campaign, "campaign.train=train/vctree_psg_mini"),
        *("campaign.start=scratch", f"campaign.settings=[{', '.join(training)}]"),
        f"campaign.annotations={data.train_folder / 'annotation.json'}",
    )

    report = out / "report.html"
    summary = render_report(
        report,
        data=data,
        campaign=campaign,
        rare=rare,
        first_queue=first_queue,
        second_queue=_proposals(campaign),
        answered=answered.data,
        answered_counting=answered_counting.data,
        exported=exported.data,
        comparisons=comparisons,
        seconds=time.monotonic() - started,
        machine=f"{os.cpu_count()} cores, {platform.machine()}, CPU only",
    )
    _say(f"The report: {report.resolve()}")
    return Outcome(_text(summary, report), {"report": report, **summary})


def _clear(out: Path) -> None:
    if out.exists() and not (out / _MARK).is_file():
        if not out.is_dir() or any(out.iterdir()):
            raise InputError(
                "this folder was not made by the demo; name a new one, its content would be lost",
                path=out,
            )
    elif out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).touch()


def _text(summary: dict[str, Any], report: Path) -> str:
    return (
        f"{summary['found']} of {summary['needles']} needles found in {summary['answers']} "
        f"answers: {summary['needles_per_100']:.1f} per 100, against "
        f"{summary['frequency_per_100']:.1f} by class frequencies and "
        f"{summary['random_per_100']:.2f} in random order\nopen {report} in a browser"
    )


def _say(text: str) -> None:
    print(f"\n== {text}", file=sys.stderr, flush=True)


def _answer(settings: DemoSettings, campaign: Path, data: DemoData) -> Outcome:
    truth = data.held_out_folder / "annotation.json"
    return run_verb("annotate", campaign, "--answers-from", truth, "--limit", settings.answers)


class _Trainings:
    """Trains the models, which is nearly all of the demo's time, and says how far it is."""

    def __init__(self, settings: DemoSettings) -> None:
        self.settings = [] if settings.steps is None else [f"steps={settings.steps}"]
        self._total = 3 * settings.seeds  # a first model, and one for each half
        self._done, self._seconds = 0, 0.0

    def run(self, seed: int, annotations: Path, out: Path) -> None:
        """Train one model into the folder ``out``."""
        left = ""
        if self._done:
            seconds = self._seconds / self._done * (self._total - self._done)
            left = f", about {seconds:.0f} s of training to go"
        print(f"-- model {self._done + 1} of {self._total}{left}", file=sys.stderr, flush=True)
        begun = time.monotonic()
        run_verb(
            "train",
            "train/vctree_psg_mini",
            f"annotations={annotations}",
            f"seed={seed}",
            *self.settings,
            "--out",
            out,
        )
        self._done += 1
        self._seconds += time.monotonic() - begun


def _predict(model: Path, data: DemoData) -> dict[str, RelationScores]:
    file = model / "held-out.parquet"
    run_verb(
        "predict",
        data.held_out_folder / "annotation.json",
        "--model",
        model / "model.safetensors",
        "--out",
        file,
    )
    return {prediction.image_id: prediction for prediction in read_prediction_parquet(file)}


def _keep_answers_of(merged: Path, image_ids: Iterable[str], data: DemoData, out: Path) -> None:
    """Write the training photographs with the answers on some of the held-out ones."""
    dataset = read_psg(merged)
    wanted = {graph.image_id for graph in data.train.graphs} | set(image_ids)
    graphs = tuple(graph for graph in dataset.graphs if graph.image_id in wanted)
    write_psg(replace(dataset, graphs=graphs), out)


def _proposals(campaign: Path) -> list[Any]:
    from haystack.pipeline.workspace import Workspace

    return Workspace.open(campaign).proposals()
