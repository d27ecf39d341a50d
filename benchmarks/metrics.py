"""Times the metrics beside the peers' evaluators; the goals of each part are in README.md.

    python benchmarks/metrics.py --sgbench-python VENV/bin/python --kaihuatang CHECKOUT \
        --authors-script CHECKOUT/calc_metrics.py

One thread; CPU time of the fastest of several runs, after one to warm up. Inputs are synthetic and
seeded. The table goes to stderr, with --json the same as one object to stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

import torch
from measure import Row, as_json, as_table, machine
from parts import PARTS
from peers import Peers, add_arguments
from setting import Sizes


def main() -> None:
    options = _parser().parse_args()
    torch.set_num_threads(1)
    sizes = Sizes(**{field.name: getattr(options, field.name) for field in fields(Sizes)})
    peers = Peers.of(options)
    where = machine()
    rows: list[Row] = []
    for name in options.parts:
        print(f"{name} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(
            prefix=f"benchmark-{name}-", dir=options.scratch
        ) as folder:
            rows += PARTS[name](sizes, peers, Path(folder))
    print(as_table(rows, where), file=sys.stderr)
    if options.json:
        print(json.dumps(as_json(rows, where)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="all by default"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--scratch", type=Path, help="folder for inputs; up to 2 GB go there")
    add_arguments(parser)
    group = parser.add_argument_group("sizes")
    for field in fields(Sizes):
        name = f"--{field.name.replace('_', '-')}"
        group.add_argument(name, type=int, default=field.default, metavar="N")
    return parser


if __name__ == "__main__":
    main()
