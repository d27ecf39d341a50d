"""Verbs over annotation files: ``stats`` and ``merge``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from haystack.cli.outcome import Outcome
from haystack.text import table


def add_verbs(verbs: Any) -> None:
    """Declare the verbs."""
    stats = verbs.add_parser(
        "stats", help="count what an annotation file holds", description=_stats.__doc__
    )
    stats.add_argument("annotations", help="PSG or Haystack JSON, or 'psg-mini'")
    stats.add_argument("--split", choices=("train", "test", "all"), default="all")
    stats.set_defaults(run=_stats)

    merge = verbs.add_parser(
        "merge", help="append annotations to a PSG file", description=_merge.__doc__
    )
    merge.add_argument("base", help="PSG or Haystack JSON to append to")
    merge.add_argument("additions", nargs="+", help="files to append, e.g. export/annotation.json")
    merge.add_argument("--out", required=True, type=Path, help="the merged JSON file")
    merge.add_argument(
        "--on-conflict",
        choices=("error", "base", "addition"),
        default="error",
        help="which side wins where a triple is labelled both ways (default: refuse)",
    )
    merge.add_argument("--prefix-ids", default="", help="put before each image id of the additions")
    for option, what in (("images", "image file"), ("masks", "panoptic PNG")):
        merge.add_argument(
            f"--prefix-{option}",
            help=f"put before each {what}'s name of the additions (default: names that lead to a "
            "file are made relative to the merged file, others stay)",
        )
    merge.add_argument(
        "--integer-ids", action="store_true", help="write image ids as integers, not text"
    )
    merge.set_defaults(run=_merge)


def _stats(args: argparse.Namespace) -> Outcome:
    """Count positives and negatives per predicate, and say how long the tail is."""
    from haystack.io import read_psg
    from haystack.statistics import DatasetSummary

    dataset = read_psg(args.annotations)
    names = dataset.vocabulary.predicate_classes
    summary = DatasetSummary.from_graphs(dataset.split(args.split), len(names))
    tail = summary.long_tail()
    data = {
        "annotations": str(args.annotations),
        "split": args.split,
        "images": summary.images,
        "segments": summary.segments,
        "positives": int(summary.positives.sum()),
        "negatives": int(summary.negatives.sum()),
        "no_relation_pairs": summary.no_relation_pairs,
        "images_without_relations": summary.images_without_relations,
        "images_with_negatives_only": summary.images_with_negatives_only,
        "duplicate_rows": summary.duplicate_rows,
        "self_relations": summary.self_relations,
        "pairs_with_several_predicates": summary.pairs_with_several_predicates,
        "faulty_segments": sum(len(positions) for positions in dataset.faulty_segments.values()),
        "long_tail": tail,
        "per_predicate": {
            name: {
                "positives": int(summary.positives[index]),
                "negatives": int(summary.negatives[index]),
                "images": int(summary.images_with[index]),
            }
            for index, name in enumerate(names)
        },
    }
    counts = data["per_predicate"]
    rows = sorted(
        ((name, *count.values()) for name, count in counts.items()),
        key=lambda row: (-row[1], -row[2]),
    )
    scalars = {key: value for key, value in data.items() if not isinstance(value, dict)}
    scalars.update({key: "-" if v is None else v for key, v in tail.items()})
    text = "\n".join(
        (
            *table(("predicate", "positives", "negatives", "images"), rows),
            "",
            *(
                f"{key.replace('_', ' ')}: {value:.3f}"
                if isinstance(value, float)
                else f"{key.replace('_', ' ')}: {value}"
                for key, value in scalars.items()
            ),
        )
    )
    return Outcome(text, data)


def _merge(args: argparse.Namespace) -> Outcome:
    """Append the images and labels of one or more files to a PSG file, losing nothing."""
    from haystack.io.datasets import find_annotations
    from haystack.io.merge import merge_psg, relocated
    from haystack.io.provenance import merged_provenance, provenance_file, write_provenance
    from haystack.io.psg import FAULTY_SEGMENTS, read_psg
    from haystack.io.psg_writer import write_psg

    folder = args.out.parent
    merged = relocated(read_psg(args.base), folder)
    reports = []
    for path in args.additions:
        addition = relocated(
            read_psg(path),
            folder,
            images=args.prefix_images is None,
            masks=args.prefix_masks is None,
        )
        merged, report = merge_psg(
            merged,
            addition,
            on_conflict=args.on_conflict,
            prefix_ids=args.prefix_ids,
            prefix_images=args.prefix_images or "",
            prefix_masks=args.prefix_masks or "",
        )
        reports.append({"addition": path, **report})
    provenance = merged_provenance(
        find_annotations(args.base), args.additions, args.prefix_ids, merged
    )
    write_psg(merged, args.out, integer_ids=args.integer_ids)
    beside = provenance_file(args.out)
    if provenance or beside.is_file():  # what an earlier merge knew of other labels must go
        write_provenance(beside, provenance)
    masks = [graph.pan_seg_file_name for graph in merged.graphs if graph.pan_seg_file_name]
    lost = [name for name in masks if not merged.path_of(name).is_file()]
    lines = [
        f"{report['addition']}: {report['new_images']} new images, "
        f"{report['merged_images']} merged into existing ones, "
        f"{report['added_relations']} relations and {report['added_negatives']} negatives added, "
        f"{report['conflicts']} conflicts"
        + (
            f"; {report['kept_in_training']} of its test images stay training images as in the base"
            if report["kept_in_training"]
            else ""
        )
        for report in reports
    ]
    lines.append(f"wrote {len(merged)} images to {args.out}")
    if merged.faulty_segments:
        lines.append(f"wrote the list of faulty segments to {folder / FAULTY_SEGMENTS}")
    if provenance:
        lines.append(f"wrote where {len(provenance)} of its labels come from to {beside}")
    if lost:
        lines.append(
            f"{len(lost)} panoptic PNGs are not where the merged file says, the first is "
            f"{lost[0]}; training needs them there (see --prefix-masks)"
        )
    data = {
        "out": args.out,
        "images": len(merged),
        "missing_masks": len(lost),
        "with_provenance": len(provenance),
        "merges": reports,
    }
    return Outcome("\n".join(lines), data)
