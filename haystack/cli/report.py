"""The verb ``report``: models side by side, as a page and as files for a paper."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from haystack.cli.outcome import Outcome


def add_verbs(verbs: Any) -> None:
    """Declare the verb."""
    report = verbs.add_parser(
        "report", help="tables and figures of one or more models", description=_report.__doc__
    )
    report.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="folder of haystack bench, or JSON that haystack evaluate --out wrote",
    )
    report.add_argument(
        "--out", type=Path, default=Path("report"), help="folder to write to (default: report)"
    )
    report.add_argument(
        "--recall",
        nargs="+",
        metavar="RUN",
        help="runs of the same models that Table 1 takes its recall from, as the paper takes R@50 "
        "from the PSG test set",
    )
    report.add_argument("--training", help="training annotations, for the long tail")
    report.add_argument(
        "--data",
        nargs="+",
        default=[],
        metavar="A.json",
        help="annotation files to draw the paper's figures 6, 7 and 8 of",
    )
    report.add_argument(
        "--reference", metavar="B.json", help="what figures 6 and 7 compare with, e.g. psg.json"
    )
    report.add_argument(
        "--examples",
        type=int,
        default=4,
        metavar="N",
        help="best and worst images shown of each model (default: 4)",
    )
    report.add_argument("--title", default="", help="of the page (default: the benchmark's)")
    report.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> Outcome:
    """Write one self-contained HTML page, and its tables and figures as files.

    Tables come as CSV, LaTeX and Markdown, figures as SVG and PDF. Models must have been measured
    on the same images under one protocol.
    """
    from haystack.reporting.render import render_report
    from haystack.reporting.runs import read_runs

    runs = read_runs(args.runs)
    recalls = None
    if args.recall:
        recalls = {run.name: run.report for run in read_runs(args.recall)}
    rendered = render_report(
        runs,
        args.out,
        recalls=recalls,
        training=args.training,
        data=args.data,
        reference=args.reference,
        examples=args.examples,
        title=args.title,
    )
    lines = [f"wrote {rendered.page} and {len(rendered.files) - 1} files beside it"]
    lines += [f"left out: {reason}" for reason in rendered.left_out]
    data = {
        "page": rendered.page,
        "files": [str(path) for path in rendered.files],
        "models": [run.name for run in runs],
        "left_out": list(rendered.left_out),
    }
    return Outcome("\n".join(lines), data)
