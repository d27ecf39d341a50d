"""Times MaskDINO beside the official implementation, on the CPU; what came out is in README.md.

    python benchmarks/maskdino.py --maskdino CHECKOUT

One thread; CPU time of the fastest of several runs, after one to warm up. Weights and pictures are
random and seeded, and the same on both sides. The table goes to stderr, with --json the same as one
object to stdout. A GPU, where there is one, gets rows of its own.
"""

from __future__ import annotations

from command import run_parts
from maskdino_parts import PARTS, Sizes


def main() -> None:
    run_parts(__doc__, PARTS, Sizes)


if __name__ == "__main__":
    main()
