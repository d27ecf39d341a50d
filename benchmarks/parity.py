"""Runs the peers' evaluators beside ours on the same random predictions, a protocol each.

    python benchmarks/parity.py --sgbench-python VENV/bin/python --kaihuatang CHECKOUT \
        --openpsg CHECKOUT --vctree CHECKOUT --fair-psgg CHECKOUT \
        --authors-script CHECKOUT/calc_metrics.py

Prints the largest difference of every metric over all cases. The exit status is 1 if one is above
the tolerance, or if no peer was given, since nothing was compared then.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ours
import torch
from peers import Peers, add_arguments, largest_difference
from synthetic import Scenes, scenes, segmented

from haystack import evaluate
from haystack.evaluation import Report

Values = dict[str, Any]
Differences = dict[str, float]
_COMMON: dict[str, Any] = {"objects": 9, "relations": 5, "classes": 4, "ragged": True}
_CASES: dict[str, dict[str, Any]] = {
    "predcls": {},
    "predcls, most predicates absent": {"predicates": 56},
    "predcls, more pairs than K": {"objects": 16, "classes": 20},
    "sgdet": {"detections": 16},
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--images", type=int, default=60, help="of each case")
    parser.add_argument("--seeds", type=int, default=3, help="data sets of each case")
    parser.add_argument("--tolerance", type=float, default=1e-6)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    options = parser.parse_args()
    torch.set_num_threads(1)
    peers = Peers.of(options)
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        found = dict(_all(peers, options.images, options.seeds, Path(folder)))
    _print(found, options.tolerance)
    worst = {
        protocol: {case: _by_metric(runs) for case, runs in cases.items()}
        for protocol, cases in found.items()
    }
    if options.json:
        print(json.dumps(worst))
    figures = [x for cases in worst.values() for case in cases.values() for x in case.values()]
    return int(not figures or not max(figures) <= options.tolerance)


def _all(
    peers: Peers, images: int, seeds: int, scratch: Path
) -> Iterator[tuple[str, dict[str, list[Differences]]]]:
    """Each protocol with the differences of each of its cases, data set by data set."""
    given: tuple[tuple[str, object, Callable[..., dict[str, Differences]]], ...] = (
        ("sgbench", peers.sgbench, _sgbench),
        ("kt", peers.kaihuatang, _kaihuatang),
        ("openpsg", peers.openpsg, _openpsg),
        ("openpsg-pan_seg", peers.openpsg, _openpsg_masks),
        ("vctree", peers.vctree, _vctree),
        ("single-mpo", peers.fair_psgg, _single_mpo),
        ("haystack-v1", peers.authors, _authors),
    )
    for protocol, where, compare in given:
        if where is None:
            print(f"{protocol}: its peer is not given", file=sys.stderr)
            continue
        cases: dict[str, list[Differences]] = {}
        for seed in range(seeds):
            folder = scratch / protocol / str(seed)
            for case, differences in compare(peers, images, seed, folder).items():
                cases.setdefault(case, []).append(differences)
        yield protocol, cases


def _made(case: str, images: int, seed: int, **more: Any) -> Scenes:
    return scenes(images, seed=seed, **{**_COMMON, "predicates": 6, **_CASES[case], **more})


def _mode(case: str) -> str:
    return case.split(",")[0]


def _sgbench(peers: Peers, images: int, seed: int, folder: Path) -> dict[str, Differences]:
    """In memory, then from its files with boxes and with masks."""
    found = {}
    for number, case in enumerate(_CASES):
        inputs = folder / str(number)
        data = _made(case, images, seed)
        data.save(inputs)
        theirs = _values(peers.run_sgbench(inputs, "rank"))
        found[case] = largest_difference(ours.values_of(data, protocol="sgbench"), theirs)
    data = _made("sgdet", images, seed)
    ours.write_sgbench(folder / "boxes", data, ranked=150)
    theirs = _values(peers.run_sgbench(folder / "boxes", "file"))
    found["files, boxes"] = largest_difference(
        _report(folder / "boxes", "predictions.json"), theirs
    )
    maps = segmented(max(2, images // 10), seed=seed, segments=9, height=60, width=90, classes=3)
    ours.write_segmented(folder / "masks", maps, predicates=3, relations=8, seed=seed)
    peers.run_sgbench(folder / "masks", "write")
    theirs = _values(peers.run_sgbench(folder / "masks", "file"))
    theirs.pop("PRank")  # no list without graph constraint: it warns and gives NaN, as ours
    found["files, masks"] = largest_difference(_report(folder / "masks", "predictions.zip"), theirs)
    return found


def _report(folder: Path, predictions: str) -> Values:
    report = evaluate(folder / "annotations.json", folder / predictions, protocol="sgbench")
    return dict(report.metrics)


def _kaihuatang(peers: Peers, images: int, seed: int, folder: Path) -> dict[str, Differences]:
    found = {}
    for number, case in enumerate(_CASES):
        inputs = folder / str(number)
        data = _made(case, images, seed, repeated=True)
        data.save(inputs)
        theirs = _values(peers.run_kaihuatang(inputs, _mode(case)))
        # The driver calls the class triplets of every second image zero-shot.
        unseen = ours.class_triplets(data, step=2)
        values = ours.values_of(data, protocol="kt", zero_shot=unseen)
        found[case] = largest_difference(values, theirs)
    return found


def _vctree(peers: Peers, images: int, seed: int, folder: Path) -> dict[str, Differences]:
    """With 50 predicates, of which many are absent in any case."""
    found = {}
    cases = [case for case, choices in _CASES.items() if "predicates" not in choices]
    for number, case in enumerate(cases):
        inputs = folder / str(number)
        data = _made(case, images, seed, repeated=True, predicates=50)
        data.save(inputs)
        theirs = _values(peers.run_vctree(inputs, _mode(case)))
        found[case] = largest_difference(ours.values_of(data, protocol="vctree"), theirs)
    return found


def _single_mpo(peers: Peers, images: int, seed: int, folder: Path) -> dict[str, Differences]:
    """From its files; its mean over predicates is undefined unless all 56 are annotated."""
    found = {}
    sizes: dict[str, dict[str, int]] = {
        "some predicates absent": {"relations": 6},
        "every predicate": {"relations": 60},
    }
    for case, size in sizes.items():
        maps = segmented(max(2, images // 4), seed=seed, segments=9, height=60, width=90, classes=3)
        inputs = folder / case.replace(" ", "-")
        ours.write_fair_psgg(inputs, maps, predicates=56, seed=seed, **size)
        theirs = _values(peers.run_fair_psgg(inputs))
        report = evaluate(
            inputs / "annotations.json", inputs / "predictions.pkl", "single-mpo", ks=(10, 20, 50)
        )
        found[case] = largest_difference(_with_vectors(report), theirs)
    return found


def _with_vectors(report: Report) -> Values:
    """The report's scalars, and of each metric the vector of predicates."""
    values: Values = dict(report.metrics)
    for row in report.per_predicate.values():
        for name, value in row.items():
            values.setdefault(f"per_predicate/{name}", []).append(value)
    return values


def _openpsg(
    peers: Peers, images: int, seed: int, folder: Path, *, masks: bool = False
) -> dict[str, Differences]:
    protocol = "openpsg-pan_seg" if masks else "openpsg"
    found = {}
    for number, case in enumerate(_CASES):
        inputs = folder / str(number)
        data = _made(case, images, seed)
        data.save(inputs)
        theirs = _values(peers.run_openpsg(inputs, _mode(case), masks=masks))
        found[case] = largest_difference(ours.values_of(data, masks, protocol=protocol), theirs)
        phrases = {k.removeprefix("phrdet/"): v for k, v in theirs.items() if "phrdet" in k}
        if phrases:
            mine = ours.values_of(data, masks, protocol=f"{protocol}-phrdet")
            found["phrdet"] = largest_difference(mine, phrases)
    return found


def _openpsg_masks(peers: Peers, images: int, seed: int, folder: Path) -> dict[str, Differences]:
    return _openpsg(peers, images, seed, folder, masks=True)


def _authors(peers: Peers, images: int, seed: int, folder: Path) -> dict[str, Differences]:
    """With "no relation" as the last column; per predicate, and their mean."""
    data = scenes(images, seed=seed, objects=9, predicates=12, relations=4, negatives=8)
    ours.write_scenes(folder, _blemished(data, seed))
    answer = peers.run_authors(folder)
    assert answer is not None
    report = evaluate(
        folder / "annotations.json",
        folder / "predictions.npy",
        protocol="haystack-v1",
        metrics=ours.LABELLED,
    )
    differences: Differences = {}
    rows = answer["values"]
    for metric in ours.LABELLED:
        mean = [row[metric] for row in rows.values()]
        mine = {metric: report.metrics[metric]}
        differences |= largest_difference(mine, {metric: sum(mean) / len(mean)})
        vector = [values[metric] for values in report.per_predicate.values()]
        their = [rows.get(name, {}).get(metric, math.nan) for name in report.per_predicate]
        name = f"per_predicate/{metric}"
        differences |= largest_difference({name: vector}, {name: their})
    return {"12 predicates": differences}


def _blemished(data: Scenes, seed: int) -> Scenes:
    """Some pairs are not predicted, some labels come twice, some say "no relation at all"."""
    rng = np.random.default_rng(seed)
    made = []
    for scene in data:
        keep = rng.random(len(scene["pairs"])) < 0.9
        again = rng.random(len(scene["negatives"])) < 0.1
        none = scene["pairs"][rng.integers(0, len(scene["pairs"]), 1)]
        rows = [scene["negatives"], scene["negatives"][again], np.insert(none, 2, -1, axis=1)]
        pairs = {name: scene[name][keep] for name in ("pairs", "scores", "no_relation")}
        made.append({**scene, **pairs, "negatives": np.concatenate(rows)})
    return Scenes.joined(made, data.predicates)


def _values(answer: dict[str, Any] | None) -> Values:
    assert answer is not None
    return answer["values"]


def _by_metric(runs: list[Differences]) -> Differences:
    """The largest difference of each metric, over data sets and K."""
    worst: Differences = {}
    for run in runs:
        for name, value in run.items():
            metric = name.split("@")[0]
            worst[metric] = max(worst.get(metric, 0.0), value)
    return worst


def _print(found: dict[str, dict[str, list[Differences]]], tolerance: float) -> None:
    for protocol, cases in found.items():
        for case, runs in cases.items():
            worst = _by_metric(runs)
            listed = ", ".join(f"{name} {value:.1e}" for name, value in worst.items())
            verdict = "equal" if max(worst.values()) <= tolerance else "DIFFERS"
            print(f"{protocol}: {case}: {verdict}: {listed}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
