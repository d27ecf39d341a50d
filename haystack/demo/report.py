"""The demo's report: one HTML file that needs no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import haystack
from haystack import Report, files
from haystack.cli.truth import truth_from
from haystack.demo.data import DemoData
from haystack.demo.figures import yield_figure
from haystack.demo.pictures import proposal_picture
from haystack.io.images import decode_image
from haystack.pipeline.propose import Proposal
from haystack.pipeline.tables import SegmentedImage
from haystack.pipeline.workspace import CONTACT_SHEET, Workspace
from haystack.reporting.examples import data_uri

SHOWN = 8
"""Proposals shown per predicate."""
_TEMPLATE = Path(__file__).with_name("report.html")
_STAND_INS = (
    (
        "images",
        "21 held-out COCO photographs (psg-mini)",
        "SA-1B: 11 million photographs in tar shards",
    ),
    (
        "image features",
        "EfficientNet-Lite0, ImageNet weights from a package",
        "DINOv2 ViT-L/14, CLS token",
    ),
    ("clusters", "k-means, k = 3", "k-means, k = 50"),
    ("masks", "COCO's panoptic annotations, precomputed", "predicted panoptic masks"),
    (
        "relation model",
        "VCTree's head on class names, boxes and mask geometry; 32 photographs",
        "VCTree on image features; PSG's 46,000 photographs",
    ),
    (
        "statistics filter",
        "off: 32 photographs know too few pairs of class and predicate",
        "on, counted on PSG: seen at least twice",
    ),
    ("annotators", "answers from the ground truth", "people on the annotation page"),
)
_COMMANDS = """\
haystack embed   sa1b --config pipeline/sa1b source.images=/data/sa-1b embed.device=cuda
haystack cluster sa1b                 # look at sa1b/cluster/sheets, edit clusters.yaml
haystack weights pull maskdino_r50    # masks: or segment.kind=precomputed segment.annotations=FILE
haystack segment sa1b
haystack score   sa1b score.model=vctree.safetensors score.statistics=psg.json score.device=cuda
haystack propose sa1b 'propose.predicates=[eating, climbing]'
haystack annotate sa1b                # opens the page on 127.0.0.1
haystack campaign next sa1b campaign.annotations=psg.json     # retrain, and propose again
haystack export  sa1b
haystack merge   psg.json sa1b/export/annotation.json --out psg-with-needles.json"""
_TABLE_METRICS = ("P-AUC", "PDD", "PDO", "R@50")
_OVERALL = ("P-AUC", "PDD", "PDO", "R@20", "R@50", "mR@50", "ngR@50")


class Comparison(NamedTuple):
    """Evaluations on the held-out photographs: of a first model, and of those retrained from it."""

    before: Report
    after: Report


def render_report(
    path: Path,
    *,
    data: DemoData,
    campaign: Path,
    rare: Sequence[int],
    first_queue: Sequence[Proposal],
    second_queue: Sequence[Proposal],
    answered: Mapping[str, Any],
    answered_counting: Mapping[str, Any],
    exported: Mapping[str, Any],
    comparisons: Sequence[Comparison],
    seconds: float,
    machine: str,
) -> dict[str, Any]:
    """Write the report and return its headline figures.

    Args:
        path: the HTML file.
        data: the demo's photographs.
        campaign: the workspace.
        rare: the predicates that were asked about.
        first_queue: proposals of the first model.
        second_queue: proposals of the last one.
        answered: what the verb ``annotate`` said.
        answered_counting: the same for the queue of the frequency baseline.
        exported: what the verb ``export`` said.
        comparisons: evaluations before and after retraining, one for each seed of training.
        seconds: how long the demo took so far.
        machine: what it ran on, in words.
    """
    import jinja2
    import markupsafe

    workspace = Workspace.open(campaign)
    images = {
        image.image_id: image
        for shard in workspace.source.shards()
        for image in workspace.segmented(shard)
    }
    pairs = sum(len(image.segments) * (len(image.segments) - 1) for image in images.values())
    names = data.train.vocabulary.predicate_classes
    yields, totals, chart = _yields(
        [names[predicate] for predicate in rare], answered, answered_counting, data, pairs
    )
    overall = [_overall(name, comparisons) for name in _OVERALL]
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        _TEMPLATE.read_text(encoding="utf-8")
    )
    page = template.render(
        version=haystack.__version__,
        images=len(data.train) + len(data.held_out),
        train_images=len(data.train),
        held_out_images=len(data.held_out),
        fold_sizes=[len(fold) for fold in data.folds],
        seconds=round(seconds),
        machine=machine,
        stand_ins=_STAND_INS,
        clusters=_clusters(workspace),
        queues=_queues(rare, first_queue, images, workspace, data),
        yields=yields,
        totals=totals,
        yield_chart=markupsafe.Markup(chart),
        export=exported,
        protocol=comparisons[0].before.protocol,
        table=_table(comparisons[0], [names[predicate] for predicate in rare]),
        overall=overall,
        seeds=len(comparisons),
        second_round={"proposals": len(second_queue)},
        workspace=campaign,
        commands=_COMMANDS,
    )
    files.write_text(path, page)
    return {
        "needles": totals["positives"],
        "answers": totals["answers"],
        "found": totals["found"],
        "needles_per_100": totals["haystack"],
        "frequency_per_100": totals["frequency"],
        "random_per_100": totals["random"],
        "pairs": pairs,
        "retraining": overall,
    }


def _yields(
    names: Sequence[str],
    answered: Mapping[str, Any],
    answered_counting: Mapping[str, Any],
    data: DemoData,
    pairs: int,
) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """Needles found per predicate, their totals, and the figure."""
    counts = _needles(data)
    rows: list[dict[str, Any]] = []
    for name in names:
        verdicts, counting = (
            said["per_predicate"].get(name, {"verdicts": []})["verdicts"]
            for said in (answered, answered_counting)
        )
        found = verdicts.count("correct")
        chance = counts[name] / pairs
        rows.append(
            {
                "predicate": name,
                "positives": counts[name],
                "answers": len(verdicts),
                "found": found,
                "random_found": chance * len(verdicts),
                "per_100": 100 * found / max(1, len(verdicts)),
                "random_per_100": 100 * chance,
                "counting_answers": len(counting),
                "counting_found": counting.count("correct"),
                "counting_per_100": 100 * counting.count("correct") / max(1, len(counting)),
                "counting_hits": [verdict == "correct" for verdict in counting],
                "hits": [verdict == "correct" for verdict in verdicts],
                "chance": chance,
            }
        )
    totals = {
        key: sum(row[key] for row in rows)
        for key in (
            *("positives", "answers", "found", "random_found"),
            *("counting_answers", "counting_found"),
        )
    }
    totals["frequency"] = 100 * totals["counting_found"] / max(1, totals["counting_answers"])
    totals["haystack"] = 100 * totals["found"] / max(1, totals["answers"])
    totals["random"] = 100 * totals["random_found"] / max(1, totals["answers"])
    totals["pairs"] = pairs
    totals["skipped"] = answered["unannotated"]
    chart = yield_figure(
        [row["hits"] for row in rows],
        [row["counting_hits"] for row in rows],
        [row["chance"] for row in rows],
        totals["positives"],
    )
    return rows, totals, chart


def _needles(data: DemoData) -> dict[str, int]:
    """Known positives per predicate on the held-out photographs."""
    names = data.held_out.vocabulary.predicate_classes
    counts = dict.fromkeys(names, 0)
    for graph in data.held_out.graphs:
        for _, _, predicate in {tuple(row) for row in graph.relations.tolist()}:
            counts[names[predicate]] += 1
    return counts


def _clusters(workspace: Workspace) -> list[dict[str, Any]]:
    return [
        {
            "name": cluster.name,
            "size": cluster.size,
            "sheet": data_uri(workspace.path(CONTACT_SHEET, cluster=cluster.id).read_bytes()),
        }
        for cluster in workspace.clusters()
        if cluster.size
    ]


def _queues(
    rare: Sequence[int],
    proposals: Sequence[Proposal],
    images: Mapping[str, SegmentedImage],
    workspace: Workspace,
    data: DemoData,
) -> list[dict[str, Any]]:
    vocabulary = workspace.vocabulary
    answer = truth_from(data.held_out)
    words = {"correct": "yes", None: "not annotated"}
    queues = []
    for predicate in rare:
        head = [proposal for proposal in proposals if proposal.predicate == predicate][:SHOWN]
        items = []
        for proposal in head:
            image = images[proposal.image_id]
            subject, target = (image.segments[i] for i in (proposal.subject, proposal.object))
            photograph = decode_image(workspace.source.read(image.image_key), image.image_key)
            picture = proposal_picture(photograph, image.id_map(), subject.id, target.id)
            verdict = answer(proposal)
            items.append(
                {
                    "picture": data_uri(picture),
                    "subject": vocabulary.object_classes[subject.category],
                    "object": vocabulary.object_classes[target.category],
                    "answer": words.get(verdict, "faulty" if "faulty" in str(verdict) else "no"),
                }
            )
        queues.append({"predicate": vocabulary.predicate_classes[predicate], "items": items})
    return queues


def _overall(name: str, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """One metric over all predicates: means over the seeds, and the change for each of them."""
    before = [comparison.before.metrics[name] for comparison in comparisons]
    after = [comparison.after.metrics[name] for comparison in comparisons]
    changes = [b - a for a, b in zip(before, after, strict=True)]
    return {
        "name": name,
        "before": fmean(before),
        "after": fmean(after),
        "change": fmean(changes),
        "changes": changes,
    }


def _table(comparison: Comparison, names: Sequence[str]) -> list[dict[str, Any]]:
    """Rows like the paper's Table 1: each metric before and after, per rare predicate."""
    reports = [report.to_dict()["per_predicate"] for report in comparison]
    rows = []
    for name in names:
        values = [report[name][metric] for metric in _TABLE_METRICS for report in reports]
        counts = reports[0][name]
        rows.append(
            {
                "name": name,
                "values": values,
                "positives": counts["positives"],
                "negatives": counts["negatives"],
                "mean": False,
            }
        )
    columns = list(zip(*(row["values"] for row in rows), strict=True))
    means = []
    for column in columns:
        known = [value for value in column if value is not None]
        means.append(sum(known) / len(known) if known else None)
    rows.append(
        {
            "name": "mean",
            "values": means,
            "positives": sum(row["positives"] for row in rows),
            "negatives": sum(row["negatives"] for row in rows),
            "mean": True,
        }
    )
    return rows
