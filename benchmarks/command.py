"""What the command lines of the benchmarks share: parts, sizes, peers, and the table."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from measure import Row, as_json, as_table, machine
from peers import Peers, add_arguments

Part = Callable[[Any, Peers, Path], list[Row]]


def run_parts(description: str, parts: Mapping[str, Part], sizes: type) -> None:
    """Run the parts that the command line asks for.

    Args:
        description: of the program.
        parts: by name, functions of the sizes, the peers and a folder for files.
        sizes: a dataclass of integers; each field becomes an argument.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts", nargs="+", choices=list(parts), default=list(parts), help="all by default"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--scratch", type=Path, help="folder for inputs; up to 2 GB go there")
    add_arguments(parser)
    group = parser.add_argument_group("sizes")
    for field in fields(sizes):
        name = f"--{field.name.replace('_', '-')}"
        group.add_argument(name, type=int, default=field.default, metavar="N")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = sizes(**{field.name: getattr(options, field.name) for field in fields(sizes)})
    peers = Peers.of(options)
    where = machine()
    rows: list[Row] = []
    if options.scratch is not None:
        options.scratch.mkdir(parents=True, exist_ok=True)
    for name in options.parts:
        print(f"{name} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(
            prefix=f"benchmark-{name}-", dir=options.scratch
        ) as folder:
            rows += parts[name](chosen, peers, Path(folder))
    print(as_table(rows, where), file=sys.stderr)
    if options.json:
        print(json.dumps(as_json(rows, where)))
