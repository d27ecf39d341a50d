"""Runs ``calc_metrics.py`` of lorjul/haystack.

Inputs: a folder with ``annotations.json`` and ``predictions.npy``. Timed are its function
``calc_scores`` on what is in memory, and that with the reading of the two files.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from time import process_time
from typing import Any

import numpy as np
from common import answer, parser, shell
from measure import best_cpu_seconds, peak_memory_mib


def main() -> None:
    options = parser().parse_args()
    warnings.simplefilter("ignore")
    shell("pandas")  # it prints the table there, and computes nothing
    spec = importlib.util.spec_from_file_location("calc_metrics", options.checkout)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules["calc_metrics"] = script
    spec.loader.exec_module(script)
    del sys.modules["pandas"]

    def read() -> tuple[np.ndarray, dict[str, Any]]:
        annotations = json.loads((options.inputs / "annotations.json").read_text())
        return np.load(options.inputs / "predictions.npy"), annotations

    results, annotations = read()
    answers: list[dict[str, Any]] = []

    def run() -> None:
        answers.append(script.calc_scores(results, annotations))

    # It takes minutes, so that a run to warm up would not change the figure.
    seconds = None
    if options.repeat == 1:
        start = process_time()
        run()
        seconds = process_time() - start
    elif options.repeat:
        seconds = best_cpu_seconds(run, options.repeat)
    else:
        run()
    reading = best_cpu_seconds(read, 1) if options.repeat else None
    values = {
        name: {"P-AUC": row["auc"], "PDD": row["dd"], "PDO": row["do"]}
        for name, row in answers[-1].items()
    }
    answer(
        options.output,
        seconds=seconds,
        reading=reading,
        images=len(annotations["data"]),
        peak_mib=peak_memory_mib(),
        values=values,
    )


if __name__ == "__main__":
    main()
