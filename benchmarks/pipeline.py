"""Times the proposal pipeline's stages beside the libraries that people would use instead.

    python benchmarks/pipeline.py --parts clustering

One thread; CPU time. Inputs are synthetic and seeded. The table goes to stderr, with --json the
same as one object to stdout. Each part lives in a module of its own that has ``PARTS`` and a
dataclass ``Sizes``.
"""

from __future__ import annotations

from dataclasses import dataclass

import clustering_part
import embedding_part
import scoring_part
import shards_part
from command import run_parts

PARTS = {
    **clustering_part.PARTS,
    **embedding_part.PARTS,
    **shards_part.PARTS,
    **scoring_part.PARTS,
}


@dataclass(frozen=True)
class Sizes(clustering_part.Sizes, embedding_part.Sizes, shards_part.Sizes, scoring_part.Sizes):
    """The sizes of all parts together."""


def main() -> None:
    run_parts(__doc__, PARTS, Sizes)


if __name__ == "__main__":
    main()
