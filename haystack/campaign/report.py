"""What a round came to: needles by round, the model before and after, the queue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack.campaign.answers import Answers
from haystack.cli.verbs import run_verb
from haystack.text import table

if TYPE_CHECKING:
    from haystack.campaign.rounds import Round
    from haystack.pipeline.config import CampaignConfig
    from haystack.pipeline.workspace import Workspace

SHOWN = ("P-AUC", "PDD", "PDO", "R@50", "mR@50", "ngR@50")


def measurement(config: CampaignConfig, folder: Path, models: Mapping[str, str]) -> dict[str, Any]:
    """Measure models on images held out.

    Args:
        config: which images, by which protocol.
        folder: of the round.
        models: what they are called in the report -> the model.

    Returns:
        ``annotations``, ``split``, ``images`` and for each model its ``metrics``; or ``reason``,
        why nothing was measured.
    """
    from haystack import evaluate
    from haystack.config import load_config
    from haystack.io import read_psg
    from haystack.training.config import TrainConfig

    learned = load_config(TrainConfig(), folder / "model" / "config.yaml").annotations
    annotations, split = config.measure or learned, config.measure_split
    held_out = read_psg(annotations).split(split)  # type: ignore[arg-type]  # by CampaignConfig
    if not config.measure and split != "test":
        return {"reason": f"the images of {learned} are learned from; give campaign.measure=FILE"}
    if not held_out:
        reason = f"{annotations} has no images of the split '{split}'; give campaign.measure=FILE"
        return {"reason": reason}
    found: dict[str, Any] = {"annotations": annotations, "split": split, "images": len(held_out)}
    for name, model in models.items():
        out = folder / f"{name}.parquet"
        run_verb("predict", annotations, "--split", split, "--model", model, "--out", out)
        report = evaluate(annotations, out, split=split, protocol=config.protocol)  # type: ignore[arg-type]
        found["protocol"] = report.protocol
        found[name] = report.to_dict()["metrics"]
        found["support"] = report.to_dict()["support"]
    return found


def report_of(workspace: Workspace, now: Round, answers: Answers) -> dict[str, Any]:
    """The report of a round that is about to end, as plain JSON types."""
    results = {
        step: now.result(step) or {}
        for step in ("answers", "train", "measure", "score", "propose", "load")
    }
    return {
        "round": now.number,
        "model_before": now.beginning()["model"],
        "model_after": results["train"]["model"],
        "answers": results["answers"],
        "training": {k: results["train"][k] for k in ("images", "conflicts", "steps", "values")},
        "measured": results["measure"],
        "queue": results["propose"].get("queue", {}),
        "quarantined": results["score"].get("quarantined", 0),
        "yield": yields(workspace, answers),
    }


def yields(workspace: Workspace, answers: Answers) -> list[dict[str, Any]]:
    """Needles per 100 answered questions, by round, with Wilson's interval of 95 %.

    ``random_per_100`` is what asking about plausible pairs at random would find on average, see
    ``haystack.statistics.random_yield``, for the predicates as often as they were asked; None where
    the annotations behind ``score.statistics`` do not say.
    """
    from haystack.proportion import Proportion

    share = _random_shares(workspace)
    names = workspace.vocabulary.predicate_classes
    found = []
    for number in sorted({number for number, _ in answers.asked}):
        counts = {p: n for (of, p), n in answers.asked.items() if of == number}
        asked = sum(a for a, _ in counts.values())
        needles = sum(n for _, n in counts.values())
        low, high = Proportion(needles, asked).interval()
        told = {p: a for p, (a, _) in counts.items() if share[p] == share[p]}  # not NaN
        expected = sum(share[p] * a for p, a in told.items()) / max(1, sum(told.values()))
        found.append(
            {
                "round": number,
                "asked": asked,
                "needles": needles,
                "per_100": 100 * needles / asked,
                "interval": [100 * low, 100 * high],
                "random_per_100": 100 * expected if told else None,
                "per_predicate": {
                    names[p]: {"asked": a, "needles": n} for p, (a, n) in sorted(counts.items())
                },
            }
        )
    return found


def _random_shares(workspace: Workspace) -> list[float]:
    """Predicate -> share of needles among plausible pairs; NaN where it is not known."""
    from haystack.io import read_psg
    from haystack.statistics import TripletStatistics, random_yield

    config, vocabulary = workspace.config.score, workspace.vocabulary
    if not config.statistics:
        return [float("nan")] * vocabulary.num_predicates
    graphs = read_psg(config.statistics, vocabulary=vocabulary).split(
        config.split  # type: ignore[arg-type]  # checked by ScoreConfig
    )
    counted = TripletStatistics.from_graphs(
        graphs, vocabulary.num_objects, vocabulary.num_predicates
    )
    shares: list[float] = random_yield(graphs, counted, min_count=config.min_count).tolist()
    return shares


def report_text(content: Mapping[str, Any]) -> str:
    """A report for people."""
    answers, training = content["answers"], content["training"]
    lines = [
        f"Round {content['round']}",
        f"learned from {training['images']} images: {answers['relations']} relations, "
        f"{answers['negatives']} negatives and {answers['no_relation_pairs']} pairs without "
        f"relation are answers, on {answers['images']} images",
    ]
    left_out = {
        "disagreements": answers["disagreements_left_out"],
        "rows with faulty segments": answers["rows_with_faulty_segments_left_out"],
        "images on which models are measured": answers["kept_out"],
    }
    lines += [f"left out: {count} {what}" for what, count in left_out.items() if count]
    if training["conflicts"]:
        lines.append(
            f"{training['conflicts']} answers contradict the annotations; campaign.on_conflict "
            "decided"
        )
    lines += ["", *yield_table(content["yield"]), "", *_measured(content["measured"]), ""]
    lines += table(("predicate", "proposals"), list(content["queue"].items()))
    return "\n".join(lines)


def yield_table(found: list[dict[str, Any]]) -> list[str]:
    """Needles by round."""
    rows = [
        (
            row["round"],
            row["asked"],
            row["needles"],
            f"{row['per_100']:.1f}",
            f"{row['interval'][0]:.1f} to {row['interval'][1]:.1f}",
            "-" if row["random_per_100"] is None else f"{row['random_per_100']:.2f}",
        )
        for row in found
    ]
    header = ("round", "answered", "needles", "per 100", "95 % interval", "random order")
    return table(header, rows) if rows else ["nothing is answered yet"]


def _measured(measured: Mapping[str, Any]) -> list[str]:
    if "reason" in measured:
        return [f"not measured: {measured['reason']}"]
    rows = [(name, *(measured[model].get(name) for model in ("before", "after"))) for name in SHOWN]
    shown = [
        (name, *(float("nan") if value is None else float(value) for value in values))
        for name, *values in rows
    ]
    return [
        f"on {measured['images']} images of {measured['annotations']} ({measured['split']}), "
        f"protocol {measured['protocol']}:",
        *table(("metric", "before", "after"), shown),
    ]
