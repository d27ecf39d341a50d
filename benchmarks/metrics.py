"""Times the metrics beside the peers' evaluators; the goals of each part are in README.md.

    python benchmarks/metrics.py --sgbench-python VENV/bin/python --kaihuatang CHECKOUT \
        --authors-script CHECKOUT/calc_metrics.py

One thread; CPU time of the fastest of several runs, after one to warm up. Inputs are synthetic and
seeded. The table goes to stderr, with --json the same as one object to stdout.
"""

from __future__ import annotations

from command import run_parts
from parts import PARTS
from setting import Sizes


def main() -> None:
    run_parts(__doc__, PARTS, Sizes)


if __name__ == "__main__":
    main()
