"""Stands in for ``haystack embed WORK source.images=TARS --executor slurm``: a cheap job."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from tiny_tars import ColourRecipe

from haystack.errors import HaystackError
from haystack.executors.slurm import SlurmExecutor


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["embed"])
    parser.add_argument("work")
    parser.add_argument("source")
    parser.add_argument("--executor", choices=["slurm"], required=True)
    parser.add_argument("--grace", type=float, required=True)
    args = parser.parse_args()
    try:
        with SlurmExecutor(args.work, progress=False, grace=args.grace) as executor:
            recipe = ColourRecipe(args.source.partition("=")[2], seconds=0.15)
            summary = executor.run(recipe())
    except HaystackError as error:
        print(error)
        return error.exit_code
    print(summary)
    return 3 if summary.quarantined else 0


if __name__ == "__main__":
    sys.exit(main())
