"""The verb ``import``: what other tools wrote, or another database held."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haystack.cli.outcome import Outcome
from haystack.errors import InputError

if TYPE_CHECKING:
    from haystack.vocabulary import Vocabulary

_TOOLS = ("label-studio", "coco-relations")


def add_verbs(verbs: Any) -> None:
    """Declare the verb."""
    verb = verbs.add_parser(
        "import",
        help="annotations of other tools as a PSG file; events into a new database",
        description=_import.__doc__,
    )
    verb.add_argument("file", type=Path, help="the JSON file, or events.jsonl")
    verb.add_argument(
        "--format",
        choices=(*_TOOLS, "events"),
        required=True,
        help="label-studio: its JSON export; coco-relations: COCO with rel_annotations; events: of "
        "haystack export --events",
    )
    tools = verb.add_argument_group("annotations of other tools")
    tools.add_argument("--out", type=Path, help="the PSG JSON; panoptic/*.png lie beside it")
    tools.add_argument(
        "--vocabulary",
        metavar="FILE",
        help="psg, or a file with class lists that names must be from (default: the file's own)",
    )
    tools.add_argument(
        "--boxes-as-masks",
        action="store_true",
        help="take objects that have a box and no mask for segments of the box's shape",
    )
    tools.add_argument(
        "--image-field",
        default="image",
        metavar="NAME",
        help="label-studio: where a task's data names its picture (default: image)",
    )
    into = verb.add_argument_group("events")
    into.add_argument("--workspace", type=Path, metavar="WORK", help="campaign that they belong to")
    into.add_argument(
        "--database", help="a new one: SQLAlchemy URL; default: annotations.db in the workspace"
    )
    verb.set_defaults(run=_import)


def _import(args: argparse.Namespace) -> Outcome:
    """Turn another tool's annotations into a PSG file, or enter events into a new database."""
    return _events(args) if args.format == "events" else _annotations(args)


def _annotations(args: argparse.Namespace) -> Outcome:
    from haystack.io.coco_relations import read_coco_relations
    from haystack.io.imported import write_imported
    from haystack.io.label_studio import read_label_studio
    from haystack.io.psg import load_json

    if args.out is None:
        raise InputError(f"--format {args.format} needs --out A.json")
    content, vocabulary = load_json(args.file), _vocabulary(args.vocabulary)
    shared = {"vocabulary": vocabulary, "boxes_as_masks": args.boxes_as_masks}
    if args.format == "label-studio":
        found = read_label_studio(content, args.file, image_field=args.image_field, **shared)
    else:
        found = read_coco_relations(content, args.file, **shared)
    report = write_imported(found.images, found.vocabulary, args.out, source=args.file)
    report.left_out = found.left_out
    lines = [
        f"wrote {report.images} images with {report.segments} segments and {report.relations} "
        f"relations to {args.out}"
    ]
    if report.shared_pixels:
        lines.append(
            f"{report.shared_pixels} pixels are of several shapes; they went to the smallest"
        )
    if report.duplicates:
        lines.append(f"{report.duplicates} relations were given more than once")
    if report.left_out:
        lines.append(f"{report.left_out} images without a finished annotation are left out")
    return Outcome("\n".join(lines), {"out": args.out, **asdict(report)})


def _vocabulary(name: str | None) -> Vocabulary | None:
    from haystack.vocabulary import Vocabulary, psg_vocabulary

    if name is None:
        return None
    return psg_vocabulary() if name == "psg" else Vocabulary.from_file(name)


def _events(args: argparse.Namespace) -> Outcome:
    from haystack.annotate.event_files import read_jsonl
    from haystack.annotate.store.event_log import enter
    from haystack.annotate.store.store import AnnotationStore
    from haystack.cli.stages import database_of
    from haystack.pipeline.workspace import Workspace

    if args.workspace is None:
        raise InputError("--format events needs --workspace WORK, whose questions they answer")
    workspace = Workspace.open(args.workspace)
    records = read_jsonl(args.file, workspace.vocabulary.predicate_classes)
    with AnnotationStore(database_of(args)) as store:
        count = enter(store.database, records)
    text = (
        f"entered {count} events; give accounts anew, and load the queue with: "
        f"haystack annotate {args.workspace}"
        + (f" --database {args.database}" if args.database else "")
    )
    return Outcome(text, {"events": count, "database": args.database})
