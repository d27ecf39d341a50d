"""Pages that follow from the code: protocols, verbs, benchmarks, the Python API."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path

API = {
    "evaluation": {
        "Evaluate": "haystack.evaluation: evaluate Report Uncertainty",
        "Compare": "haystack.evaluation: compare Comparison",
        "Named benchmarks": "haystack.evaluation: Benchmark run_benchmark BenchmarkResult "
        "read_result leaderboard",
        "Predictions of any format": "haystack.evaluation: open_predictions PredictionSource "
        "READERS",
        "In detectron2's loop": "haystack.evaluation: SceneGraphEvaluator",
    },
    "metrics": {
        "All at once": "haystack.metrics: SceneGraphMetrics METRICS RECALLS",
        "Protocols": "haystack.metrics: Protocol PROTOCOLS get_protocol",
        "With explicit negatives": "haystack.metrics: PredicateAUROC PredicateDisplacement",
        "Recalls": "haystack.metrics: TripletRecall PairRecall ZeroShotRecall "
        "WeightedTripletRecall IndependentRecall InstanceRecall PredicateRank",
        "Segmentation": "haystack.metrics: PanopticQuality",
    },
    "functional": {
        "P-AUC": "haystack.metrics.functional: predicate_auroc predicate_auroc_of_samples "
        "score_histogram auroc_from_histogram BinnedAUROC",
        "PDD and PDO": "haystack.metrics.functional: predicate_discrimination_disadvantage "
        "predicate_dominance_overestimation rank_histogram "
        "discrimination_disadvantage_from_histogram dominance_overestimation_from_histogram",
        "Ranks": "haystack.metrics.functional: relation_probabilities predicate_ranks ranks_of "
        "triplet_ranks TripletRanks FirstHits hits_of_rows annotated_pair_ranks independent_ranks "
        "reachable_ranks NEVER",
        "Recalls from ranks": "haystack.metrics.functional: predicate_groups grouped_hits "
        "recall_shares mean_recall frequency_weighted_recall diversity_weighted_mean "
        "instance_recall instance_recall_rows mean_predicate_rank",
        "Which predicted object is which": "haystack.metrics.functional: object_pairs ObjectPairs "
        "box_iou id_map_overlaps mask_overlaps rle_iou Overlaps match_objects Matches MatchRule "
        "RULES",
        "Panoptic quality": "haystack.metrics.functional: panoptic_rows panoptic_counts "
        "PanopticCounts panoptic_quality Qualities",
    },
    "data": {
        "Annotations": "haystack.scene_graph: SceneGraphDataset SceneGraph Segment as_triplets",
        "Predictions": "haystack.scene_graph: RelationScores RankedTriplets PredictedObjects "
        "MaskRuns best_triplets",
        "Names": "haystack.vocabulary: Vocabulary psg_vocabulary",
    },
    "io": {
        "Annotations": "haystack.io: read_psg write_psg find_annotations",
        "Merging": "haystack.io.merge: merge_psg",
        "Predictions": "haystack.io.prediction_parquet: write_prediction_parquet "
        "read_prediction_parquet PredictionParquet",
        "Segments": "haystack.io.panoptic_png: read_panoptic_png write_panoptic_png",
    },
    "models": {
        "Relation models": "haystack.models.relation.protocol: RelationModel DeviceRelationModel "
        "TrainableRelationModel",
        "What they get and give": "haystack.models.relation.inputs: SceneInput RelationLogits "
        "PairLogits all_pairs",
        "Segmenters": "haystack.pipeline.segmenters.base: Segmenter BatchSegmenter Segmentation",
    },
    "settings": {
        "The whole": "haystack.pipeline.config: WorkspaceConfig load_config",
        "Images and stages": "haystack.pipeline.config: SourceConfig EmbedConfig ClusterConfig "
        "SegmentConfig ScoreConfig ProposeConfig",
        "People and rounds": "haystack.pipeline.config: AnnotateConfig CampaignConfig",
    },
}
"""Page -> heading -> a module and the names of it that stand there."""


def write_generated(folder: Path) -> None:
    """Write every generated page into ``folder``."""
    folder.mkdir(exist_ok=True)
    for name, groups in API.items():
        (folder / f"api_{name}.md").write_text(reference(groups), encoding="utf-8")
    _refuse_undocumented()
    (folder / "protocols.md").write_text(protocols(), encoding="utf-8")
    (folder / "verbs.md").write_text(verbs(), encoding="utf-8")
    (folder / "benchmarks.md").write_text(benchmarks(), encoding="utf-8")


def protocols() -> str:
    """For each protocol, what it does otherwise than ``paper``; then what the choices mean."""
    from haystack.metrics.protocols import PROTOCOLS, Protocol

    paper = PROTOCOLS["paper"]
    lines = ["| protocol | otherwise than `paper` |", "|---|---|"]
    for name, protocol in PROTOCOLS.items():
        differences = [
            f"`{field.name} = {getattr(protocol, field.name)!r}`"
            for field in dataclasses.fields(Protocol)
            if field.name != "name" and getattr(protocol, field.name) != getattr(paper, field.name)
        ]
        lines.append(f"| `{name}` | {', '.join(differences) or '(the choices below)'} |")
    lines += ["", "| choice | `paper` | what it decides |", "|---|---|---|"]
    for name, text in _arguments(Protocol.__doc__ or "").items():
        if name != "name":
            lines.append(f"| `{name}` | `{getattr(paper, name)!r}` | {text} |")
    return "\n".join(lines) + "\n"


def verbs() -> str:
    """The help of every verb, as the terminal shows it."""
    from haystack.cli.parser import build_parser

    parser = build_parser()
    actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    summaries = {a.dest: a.help for a in actions[0]._choices_actions}
    parts = []
    for name, verb in actions[0].choices.items():
        verb.formatter_class = _wide
        help_text = verb.format_help().replace("```", "")
        parts.append(f"## {name}\n\n{summaries[name]}\n\n```text\n{help_text.strip()}\n```\n")
    return "\n".join(parts)


def benchmarks() -> str:
    """The named benchmarks."""
    from haystack.cli.bench import load_benchmark
    from haystack.cli.configs import own_configs

    lines = ["| name | task | protocol | columns | annotations |", "|---|---|---|---|---|"]
    for config in own_configs("bench"):
        b = load_benchmark(config)
        name = config.partition("/")[2]
        columns = ", ".join(b.columns)
        lines.append(f"| `{name}` | {b.task} | `{b.protocol}` | {columns} | {b.source} |")
    return "\n".join(lines) + "\n"


def reference(groups: dict[str, str]) -> str:
    """For each heading a table of its classes and functions, one line each; then what each is."""
    parts = []
    for heading, line in groups.items():
        module_name, names = line.split(": ")
        module = import_module(module_name)
        table, entries = [], []
        for name in names.split():
            full = f"{module_name}.{name}"
            member = getattr(module, name)
            if inspect.isclass(member):
                entries.append(f".. autoclass:: {full}\n   :members:\n")
            elif inspect.isroutine(member):
                entries.append(f".. autofunction:: {full}\n")
            else:
                text = textwrap.indent(_text_of_data(module_name, name), "   ")
                entries.append(f".. py:data:: {full}\n\n{text}\n")
                continue
            table.append(f"   ~{full}")
        head = [".. autosummary::", "   :nosignatures:", "", *table, ""] if len(table) > 1 else []
        parts += [f"## {heading}\n", "```{eval-rst}", *head, *entries, "```\n"]
    return "\n".join(parts)


def _refuse_undocumented() -> None:
    """Names in ``__all__`` of a package that the reference documents stand on a page."""
    listed: dict[str, set[str]] = {}
    for groups in API.values():
        for line in groups.values():
            module, names = line.split(": ")
            listed.setdefault(module, set()).update(names.split())
    for module, names in listed.items():
        missing = set(getattr(import_module(module), "__all__", ())) - names
        if missing:
            raise LookupError(f"{module}: no page of the reference has {sorted(missing)}")


def _text_of_data(package: str, name: str) -> str:
    """The docstring below a constant, in the module of the package that defines it."""
    from sphinx.pycode import ModuleAnalyzer

    for module in sorted(m for m in sys.modules if m == package or m.startswith(f"{package}.")):
        found = ModuleAnalyzer.for_module(module).find_attr_docs().get(("", name))
        if found:
            return "\n".join(found)
    raise LookupError(f"{package}.{name} has no docstring; write one below it")


def _wide(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=28, width=96)


def _arguments(docstring: str) -> dict[str, str]:
    """Name -> text of the ``Args`` of a Google docstring."""
    section = docstring.partition("Args:\n")[2]
    found: dict[str, str] = {}
    for line in section.splitlines():
        start = re.match(r" {8}(\w+): (.*)", line)
        if start:
            name = start[1]
            found[name] = start[2]
        elif line.startswith(" " * 12) and found:
            found[name] += " " + line.strip()
    return found
