"""Runs ``scripts/evaluate.py`` of lorjul/fair-psgg, the SingleMPO evaluator, from a checkout.

Inputs: a folder with ``annotations.json``, ``predictions.pkl`` and panoptic PNGs; it knows 56
predicates only. Of its metrics that are no recalls some are random, and all are left out. Its
tables go into a dict instead of a CSV file.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

# Both look for pandas, before that is a shell.
import sklearn.metrics  # noqa: F401
import torchvision.ops  # noqa: F401
from common import answer, parser, shell

_NAMES = {"R": "R", "mR": "mR", "NgR": "ngR", "mNgR": "ng-mR"}


class _Table(dict):
    """What it asks of a table."""

    saved: ClassVar[dict[str, Any]] = {}

    def __init__(self, columns: dict[str, Any], index: Any = None) -> None:
        super().__init__(columns)
        self.index = SimpleNamespace(names=index)

    def to_csv(self, path: Path) -> None:
        type(self).saved = dict(self)


def main() -> None:
    options = parser().parse_args()
    shell("pandas", NA=None, DataFrame=_Table, concat=lambda tables, **_: _Table(tables[1]))
    script = _load(options.checkout / "scripts" / "evaluate.py")
    script._calc_predicate_metrics = lambda *_: None
    folder = options.inputs
    with (folder / "predictions.pkl").open("rb") as stream:
        outputs = pickle.load(stream)  # which the benchmark has written
    truth = json.loads((folder / "annotations.json").read_text())
    script.calc_metrics(truth, outputs, None, ignore_box_labels=False, seg_dir=folder)
    values: dict[str, Any] = {}
    for name, column in _Table.saved.items():
        kind, k = name.split("@")
        if k == "-1":  # K = the number of annotated pairs
            continue
        values[f"{_NAMES[kind]}@{k}"] = float(column[0])
        if kind.startswith("m"):
            vector = _NAMES[kind.removeprefix("m")]
            values[f"per_predicate/{vector}@{k}"] = column[2:]
    answer(options.output, images=len(outputs), values=values)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("evaluate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
