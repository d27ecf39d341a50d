"""Times the relation models beside slower versions of the same; the goals are in README.md.

    python benchmarks/models.py --openpsg CHECKOUT

One thread; CPU time of the fastest of several runs, after one to warm up. Weights and inputs are
random and seeded. The table goes to stderr, with --json the same as one object to stdout.
"""

from __future__ import annotations

from command import run_parts
from model_parts import PARTS, Sizes


def main() -> None:
    run_parts(__doc__, PARTS, Sizes)


if __name__ == "__main__":
    main()
