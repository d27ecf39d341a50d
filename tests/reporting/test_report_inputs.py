"""Reports of what others measure: any vocabulary, any format of predictions, undefined numbers."""

from __future__ import annotations

import csv
import dataclasses
import json
import re

import numpy as np
import pytest
from openpsg_pickles import Result, write_results
from PIL import Image

from haystack.cli import main
from haystack.evaluation import Benchmark, evaluate, run_benchmark
from haystack.io import read_psg
from haystack.io.panoptic_png import read_panoptic_png
from haystack.io.prediction_parquet import write_prediction_parquet
from haystack.reporting.runs import Run, read_runs
from haystack.reporting.sections import Request, make_sections
from haystack.scene_graph import MaskRuns, PredictedObjects, RelationScores

SIZE = (24, 40)
OBJECTS = 4
PAIRS = np.array([(s, o) for s in range(OBJECTS) for o in range(OBJECTS) if s != o])
THREE = ("on", "beside", "eating")


def annotations(folder, predicates=THREE, *, images=8, negatives=True, absent=()):
    """Upright stripes of cats, dogs and sky; half of the images are for the test."""
    rng = np.random.default_rng(0)
    (folder / "panoptic").mkdir(parents=True, exist_ok=True)
    ids = np.zeros((*SIZE, 3), np.uint8)
    for number in range(OBJECTS):
        ids[2:22, 10 * number : 10 * number + 9, 0] = number + 1
    data = []
    for image in range(images):
        Image.fromarray(ids).save(folder / "panoptic" / f"{image}.png")
        classes = rng.integers(3, size=OBJECTS).tolist()
        draws = rng.random((len(predicates), len(PAIRS)))
        holds = [
            [*PAIRS[pair].tolist(), p]
            for p, pair in np.argwhere(draws < 0.4 / np.arange(1, len(predicates) + 1)[:, None])
            if predicates[p] not in absent
        ]
        fails = [[*PAIRS[pair].tolist(), int(p)] for p, pair in np.argwhere(draws > 0.8)]
        data.append(
            {
                "image_id": str(image),
                "file_name": f"{image}.jpg",
                "pan_seg_file_name": f"panoptic/{image}.png",
                "height": SIZE[0],
                "width": SIZE[1],
                "segments_info": [
                    {
                        "id": n + 1,
                        "category_id": c,
                        "isthing": int(c < 2),
                        "iscrowd": 0,
                        "area": 180,
                    }
                    for n, c in enumerate(classes)
                ],
                "annotations": [
                    {"bbox": [10 * n, 2, 10 * n + 9, 22], "bbox_mode": 0, "category_id": c}
                    for n, c in enumerate(classes)
                ],
                "relations": [[s, o, int(p)] for s, o, p in holds],
                "neg_relations": fails if negatives else [],
            }
        )
    content = {
        "thing_classes": ["cat", "dog"],
        "stuff_classes": ["sky"],
        "predicate_classes": list(predicates),
        "test_image_ids": [str(image) for image in range(images // 2)],
        "data": data,
    }
    file = folder / "annotation.json"
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return file


def masks_of(dataset, graph):
    ids = read_panoptic_png(dataset.path_of(graph.pan_seg_file_name), size=SIZE)
    return np.stack([ids == number for number in graph.segment_ids])


def predictions(file, source, seed=0, *, answered=None, detects=False, zero=()):
    """Random scores in Parquet; a detector's objects have the annotated masks."""
    dataset = read_psg(source)
    rng = np.random.default_rng(seed)
    names = dataset.vocabulary.predicate_classes
    images = []
    for graph in dataset.split("test")[:answered]:
        objects = None
        if detects:
            masks = MaskRuns.from_masks(masks_of(dataset, graph), *SIZE)
            certain = rng.random(OBJECTS).astype(np.float32)
            objects = PredictedObjects(graph.labels, certain, graph.boxes, masks)
        scores = rng.random((len(PAIRS), len(names)), dtype=np.float32)
        scores[:, [names.index(name) for name in zero]] *= 1e-3
        images.append(RelationScores(graph.image_id, PAIRS, scores, objects=objects))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_prediction_parquet(images, file, names)
    return file


def benchmark(source, predicates=3, **changes):
    made = Benchmark(
        name="made",
        source="made here",
        annotations=str(source),
        training="same",
        predicates=predicates,
        ks=[3, 6, 9],
        metrics=["P-AUC", "PDD", "PDO", "R", "mR"],
        columns=["P-AUC", "R@6", "mR@6"],
        rank_by="P-AUC",
        replicates=20,
    )
    return dataclasses.replace(made, **changes)


DETECTION = {
    "task": "sgdet",
    "protocol": "openpsg-pan_seg",
    "training": None,
    "metrics": ["R", "mR", "PQ"],
    "columns": ["R@6", "mR@6", "PQ"],
    "rank_by": "mR@6",
}


def report(out, *runs, **options):
    """The page, the tables by name, and what the command said is left out."""
    words = ["report", *runs, "--out", out, "--examples", 1]
    for name, value in options.items():
        words += [f"--{name}", value]
    assert main([*map(str, words), "--json"]) == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    tables = {}
    for file in (out / "tables").glob("*.csv"):
        with file.open(encoding="utf-8") as stream:
            tables[file.stem] = list(csv.DictReader(stream))
    return page, tables, (out / "report.md").read_text(encoding="utf-8")


def test_a_vocabulary_of_one_predicate(tmp_path):
    source = annotations(tmp_path / "data", ["on"])
    for seed in range(2):
        file = predictions(tmp_path / f"{seed}.parquet", source, seed)
        run_benchmark(benchmark(source, 1), file, model=f"m{seed}").save(tmp_path / f"m{seed}")
    page, tables, text = report(
        tmp_path / "out", tmp_path / "m0", tmp_path / "m1", data=source, reference=source
    )
    assert [row["predicate"] for row in tables["table1"]] == ["on", "mean"]
    assert float(tables["table1"][0]["m0 P-AUC"]) > 0
    assert not any("PDD" in column for column in tables["table1"][0])
    assert "PDD and PDO rank predicates: a single one has none." in page
    assert "PDO against PDD: no predicate has both." in text
    assert "Confusion between predicates" not in page


def test_many_predicates(tmp_path):
    names = [f"relation {number}" for number in range(100)]
    source = annotations(tmp_path / "data", names)
    file = predictions(tmp_path / "p.parquet", source)
    run_benchmark(benchmark(source, 100), file, model="m").save(tmp_path / "m")
    page, tables, _ = report(tmp_path / "out", tmp_path / "m")
    labelled = {
        row[2]
        for image in json.loads(source.read_text())["data"][:4]
        for row in (*image["relations"], *image["neg_relations"])
    }
    assert len(tables["table1"]) == len(labelled) + 1
    assert "PDO: bars show the 60 predicates with most positives of" in page
    assert "<details><summary>Predicates one by one (" in page  # folded


def test_detected_objects_with_masks(tmp_path):
    source = annotations(tmp_path / "data")
    for seed in range(2):
        file = predictions(tmp_path / f"{seed}.parquet", source, seed, detects=True)
        result = run_benchmark(benchmark(source, **DETECTION), file, model=f"m{seed}")
        result.save(tmp_path / f"m{seed}")
    page, tables, text = report(tmp_path / "out", tmp_path / "m0", tmp_path / "m1")
    assert {float(row["PQ"]) for row in tables["leaderboard"]} == {1.0}
    assert "R@6 along the long tail" in page  # the recall of the benchmark, whatever its K
    assert text.count("Confusion and examples of m0, m1:") == 1
    assert "who displaces" not in page.lower()


def test_results_of_openpsg(tmp_path):
    source = annotations(tmp_path / "data")
    dataset = read_psg(source)
    rng = np.random.default_rng(0)
    for task in ("predcls", "sgdet"):
        results = []
        for graph in dataset.split("test"):
            certain = np.ones(OBJECTS) if task == "predcls" else rng.random(OBJECTS)
            scores = rng.random((len(PAIRS), 4)).astype(np.float32)
            results.append(
                Result(
                    refine_bboxes=np.c_[graph.boxes, certain].astype(np.float32),
                    labels=graph.labels + 1,
                    masks=masks_of(dataset, graph),
                    rel_pair_idxes=PAIRS,
                    rel_dists=scores / scores.sum(1, keepdims=True),
                    formatted_bboxes=[],
                    img_shape=(*SIZE, 3),
                    pan_results=None,
                )
            )
        file = write_results(tmp_path / f"{task}.pkl", results)
        changes = DETECTION if task == "sgdet" else {"protocol": "openpsg"}
        run_benchmark(benchmark(source, **changes), file, model=task).save(tmp_path / task)
        page, tables, _ = report(tmp_path / f"out-{task}", tmp_path / task)
        assert [row["model"] for row in tables["leaderboard"]] == [task]
        assert ("Confusion between predicates" in page) == (task == "predcls")


def test_results_of_sgbench_have_no_scores_and_the_report_says_so(tmp_path):
    source = annotations(tmp_path / "data")
    images = [
        {
            "id": graph.image_id,
            "categories": graph.labels.tolist(),
            "bboxes": graph.boxes.tolist(),
            "triplets": [[int(s), int(o), int(s + o) % 3] for s, o in PAIRS],
        }
        for graph in read_psg(source).split("test")
    ]
    file = tmp_path / "sgbench.json"
    file.write_text(json.dumps({"version": 2, "images": images}))
    evaluate(source, file, "sgbench").save(tmp_path / "model.json")
    page, tables, _ = report(tmp_path / "out", tmp_path / "model.json")
    columns = [name for name in tables["leaderboard"][0] if not name.endswith((" low", " high"))]
    assert columns == ["rank", "model", "R@50", "mR@50"]
    assert "Ordered by R@50." in page
    assert "the predictions rank triplets and give no scores" in page
    assert page.count("<figure") == 1  # bars of R@50; nothing else has a point


def test_images_without_an_answer_are_counted(tmp_path):
    source = annotations(tmp_path / "data")
    file = predictions(tmp_path / "p.parquet", source, answered=1)
    run_benchmark(benchmark(source), file, model="silent").save(tmp_path / "silent")
    page, _, _ = report(tmp_path / "out", tmp_path / "silent")
    assert re.search(r"silent lacks \d+ annotated pairs \(3 of 4 images have no prediction\)", page)


def test_zeros_are_a_sentence_and_no_bars(tmp_path):
    source = annotations(tmp_path / "data", absent=("beside",))
    for seed in range(2):
        file = predictions(tmp_path / f"{seed}.parquet", source, seed, zero=("eating",))
        run_benchmark(benchmark(source), file, model=f"m{seed}").save(tmp_path / f"m{seed}")
    runs = read_runs([tmp_path / "m0", tmp_path / "m1"])
    assert all(run.report.per_predicate["eating"]["R@6"] == 0 for run in runs)
    sections = make_sections(Request(runs, examples=0))
    (bars,) = next(section.parts for section in sections if section.title == "Predicates")
    assert "R@6 is 0 for all models for 1 of 2 predicates: eating." in bars.text
    recall = next(chart for chart in bars.charts if chart.title == "R@6 of each predicate")
    assert recall.text.startswith("Bars of R@6 for 1 predicates")


@pytest.mark.parametrize("metrics", [("R",), ("InstR", "PRank"), ("P-AUC", "PDD", "PDO", "R")])
def test_nothing_but_undefined_numbers(tmp_path, metrics):
    source = annotations(tmp_path / "data", absent=THREE)
    file = predictions(tmp_path / "p.parquet", source)
    evaluate(source, file, metrics=metrics).save(tmp_path / "m.json")
    assert "null" in (tmp_path / "m.json").read_text()
    page, tables, _ = report(tmp_path / "out", tmp_path / "m.json", data=source, reference=source)
    assert not re.search(r"\bnan\b", page)
    if "PDO" not in metrics:  # the only one that negatives define
        assert "Ordered by name: no model has a value of" in page
    latex = (tmp_path / "out" / "tables" / "table1.tex").read_text()
    assert r"\multicolumn{0}" not in latex
    assert [row["labels +"] for row in tables["table1"]] == ["0"] * len(tables["table1"])


def test_annotations_without_negatives(tmp_path):
    source = annotations(tmp_path / "data", negatives=False)
    file = predictions(tmp_path / "p.parquet", source)
    result = run_benchmark(benchmark(source), file, model="m")
    assert "nan" not in str(result)
    result.save(tmp_path / "m")
    page, tables, text = report(tmp_path / "out", tmp_path / "m")
    assert "P-AUC asks for explicit negatives; the annotations have none here." in page
    assert "Ordered by name: no model has a value of P-AUC." in page
    assert "R@6 against P-AUC: no predicate has both." in text
    assert "R@6 along the long tail" in page
    assert not any("P-AUC" in column for column in tables["table1"][0])


def test_runs_of_other_protocols_are_named(tmp_path, capsys):
    source = annotations(tmp_path / "data")
    file = predictions(tmp_path / "p.parquet", source)
    for protocol in ("paper", "vctree"):
        evaluate(source, file, protocol).save(tmp_path / f"{protocol}.json")
    words = ["report", tmp_path / "paper.json", tmp_path / "vctree.json", "--out", tmp_path / "out"]
    assert main([*map(str, words)]) == 2
    assert "the protocol differs (paper and vctree)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_metric_of_one_model_alone_is_a_dash_for_the_other(tmp_path):
    source = annotations(tmp_path / "data")
    file = predictions(tmp_path / "p.parquet", source)
    full = evaluate(source, file, metrics=("P-AUC", "R"), ks=(6,))
    lacking = dataclasses.replace(
        full,
        per_predicate={n: {**v, "P-AUC": float("nan")} for n, v in full.per_predicate.items()},
        metrics={**full.metrics, "P-AUC": float("nan")},
    )
    sections = make_sections(Request([Run("a", full), Run("b", lacking)], examples=0))
    (table,) = sections[0].parts[0].tables
    assert "| \N{EN DASH} |" in table.markdown()
    assert "nan" not in table.html() + table.latex() + table.csv()


@pytest.mark.filterwarnings("error::UserWarning")
def test_names_in_any_alphabet(tmp_path):
    nobodys = "\N{EGYPTIAN HIEROGLYPH A001}"
    names = [f"looks at {nobodys}", "à côté_de & 50 %", "πάνω σε", "на столе"]
    source = annotations(tmp_path / "data", names)
    file = predictions(tmp_path / "p.parquet", source)
    run_benchmark(benchmark(source, 4), file, model="Modèle_1 & 2").save(tmp_path / "m")
    page, tables, text = report(
        tmp_path / "out", tmp_path / "m", data=source, reference=source, title=f"{nobodys} & <1>"
    )
    assert [row["predicate"] for row in tables["table1"]] == [*names, "mean"]
    assert text.count(f"no font of this machine has {nobodys}") == 1
    assert f"<title>{nobodys} &amp; &lt;1&gt;</title>" in page
    latex = (tmp_path / "out" / "tables" / "table1.tex").read_text(encoding="utf-8")
    assert latex.splitlines()[1].endswith(f": {nobodys}настоле")
