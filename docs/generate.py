"""Pages that follow from the code: the protocol table, the verbs, the benchmarks."""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path


def write_generated(folder: Path) -> None:
    """Write every generated page into ``folder``."""
    folder.mkdir(exist_ok=True)
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
