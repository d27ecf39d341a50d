"""Times the annotation service: answer-and-next at human pace and flat out, and its pictures.

    python benchmarks/annotate.py
    HAYSTACK_POSTGRES_URL=postgresql://... python benchmarks/annotate.py --parts pace closed

The real service runs in a process of its own, on this machine's loopback address; annotators are
threads of this one. Latencies are wall time, so what else runs on the machine counts: the load is
in the table, and so is the CPU time that the service took for an answer. PostgreSQL is measured
beside SQLite where the variable names an empty database; its tables are dropped first.
"""

from __future__ import annotations

from dataclasses import dataclass

import annotate_media_part
import annotate_parts
from command import run_parts

PARTS = {**annotate_parts.PARTS, **annotate_media_part.PARTS}


@dataclass(frozen=True)
class Sizes(annotate_parts.Sizes, annotate_media_part.Sizes):
    """The sizes of all parts together."""


def main() -> None:
    run_parts(__doc__, PARTS, Sizes)


if __name__ == "__main__":
    main()
