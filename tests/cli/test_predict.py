"""``haystack predict``: pictures in, a folder of scene graphs out; tables as before."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import haystack
from haystack.cli import main, progress
from haystack.io import read_psg, write_psg
from haystack.io.merge import relocated
from haystack.io.panoptic_png import read_panoptic_png, write_panoptic_png
from haystack.io.prediction_parquet import read_prediction_parquet
from haystack.pipeline import scene_graphs
from haystack.pipeline.scene_graphs import _Names
from haystack.text import display_name

MINI = read_psg("psg-mini")
MODEL = f"{Path(__file__).parents[2]}/examples/own_relation_model.py:NearIsRelated"
CHOSEN = [graph for graph in MINI.split("test") if len(graph.segments) < 9][:3]


def run(capsys, *argv):
    code = main([*map(str, argv), "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


@pytest.fixture
def photographs(tmp_path):
    folder = tmp_path / "photographs"
    folder.mkdir()
    for graph in CHOSEN:
        shutil.copy(MINI.path_of(graph.file_name), folder)
    return folder


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counted")
    assert main(["train", "train/frequency_psg_mini", "--out", str(folder)]) == 0
    return folder


def test_a_folder_of_pictures(capsys, tmp_path, photographs, counted):
    out = tmp_path / "out"
    code, data, text = run(
        capsys,
        *("predict", photographs, "--segments", "psg-mini", "--model", counted),
        *("--out", out, "--top", 4),
    )
    assert code == 0
    assert data == {
        "out": str(out),
        "images": 3,
        "without_pair": 0,
        "without_triplet": 0,
        "quarantined": [],
    }
    assert "wrote 3 images" in text
    graphs = read_psg(out / "scene_graphs.json")
    assert len(graphs) == 3
    for graph, truth in zip(graphs.graphs, sorted(CHOSEN, key=lambda g: g.file_name), strict=True):
        assert graph.image_id == truth.image_id
        assert graph.segments == truth.segments
        assert graphs.path_of(graph.file_name).samefile(photographs / Path(truth.file_name).name)
        np.testing.assert_array_equal(
            read_panoptic_png(graphs.path_of(graph.pan_seg_file_name)),
            read_panoptic_png(MINI.path_of(truth.pan_seg_file_name)),
        )
        scores = graph.extra["relation_scores"]
        assert len(scores) == len(graph.relations) <= 4
        assert scores == sorted(scores, reverse=True)
        assert graph.extra["min_score"] == 0.01 <= scores[-1]
        name = Path(truth.file_name).stem
        with Image.open(out / "pictures" / f"{name}.jpg") as picture:
            assert picture.width > 1000
    assert not (out / "quarantine.jsonl").exists()
    assert not list(out.rglob(".tmp*"))
    first = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    run(
        capsys,
        *("predict", photographs, "--segments", "psg-mini", "--model", counted),
        *("--out", out, "--top", 4),
    )
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == first


def test_where_nothing_is_certain_nothing_is_drawn_and_that_is_said(
    capsys, tmp_path, photographs, counted, monkeypatch
):
    """The frequency baseline knows a pair of unseen classes by its smoothing alone."""
    captions = []
    draw = scene_graphs.draw_scene

    def record(drawing, *, kind):
        captions.append((len(drawing.triplets), drawing.caption))
        return draw(drawing, kind=kind)

    monkeypatch.setattr(scene_graphs, "draw_scene", record)
    arguments = ("predict", photographs, "--segments", "psg-mini", "--model", counted)
    arguments += ("--out", tmp_path, "--pictures", "png")
    code, data, text = run(capsys, *arguments, "--min-score", "0.99")
    assert (code, data["images"], data["without_triplet"]) == (0, 3, 3)
    assert "in 3 of them no triplet scores 0.99 or more; --min-score sets this bound" in text
    for record in read_psg(tmp_path / "scene_graphs.json").graphs:
        assert len(record.relations) == 0
        assert record.extra == {"relation_scores": [], "min_score": 0.99}
    assert len(captions) == 3
    for shown, caption in captions:
        assert shown == 0
        assert re.fullmatch(r"none of \d+ pairs scores 0\.99 or more", caption)
    captions.clear()
    _, data, text = run(capsys, *arguments, "--min-score", "0")
    assert data["without_triplet"] == 0
    assert "no triplet" not in text
    assert any(shown == 10 for shown, _ in captions)


def test_a_lone_segment_is_counted_apart_from_low_scores(capsys, tmp_path, photographs, counted):
    """No bound on scores helps a picture that has nothing to relate."""
    segments = tmp_path / "segments"
    segments.mkdir()
    for number, graph in enumerate(CHOSEN):
        name = Path(graph.file_name).stem
        id_map = read_panoptic_png(MINI.path_of(graph.pan_seg_file_name))
        kept = graph.segments[:1] if number == 0 else graph.segments
        id_map[~np.isin(id_map, [segment.id for segment in kept])] = 0
        write_panoptic_png(segments / f"{name}.png", id_map)
        listed = [
            {"id": segment.id, "category": MINI.vocabulary.object_classes[segment.category]}
            for segment in kept
        ]
        (segments / f"{name}.json").write_text(json.dumps(listed))
    arguments = ("predict", photographs, "--segments", segments, "--model", counted)
    arguments += ("--out", tmp_path / "out", "--no-pictures")
    _, data, text = run(capsys, *arguments, "--min-score", "0.99")
    assert (data["images"], data["without_pair"], data["without_triplet"]) == (3, 1, 2)
    assert "in 1 of them there are fewer than two segments to relate" in text
    assert "in 2 of them no triplet scores 0.99 or more; --min-score sets this bound" in text
    _, data, text = run(capsys, *arguments, "--min-score", "0")
    assert (data["without_pair"], data["without_triplet"]) == (1, 0)
    assert "--min-score" not in text
    assert not (tmp_path / "out" / "pictures").exists()


def test_it_says_how_far_it_is(capsys, tmp_path, photographs, counted, monkeypatch):
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    for out in (tmp_path / "out", tmp_path / "p.parquet"):
        arguments = ("predict", "psg-mini", "--split", "test", "--no-pictures", "--model", counted)
        _, _, text = run(capsys, *arguments, "--out", out)
        assert re.search(r"^predict: 20 of 21 images after \d+ s$", text, re.MULTILINE)
    given = ("predict", photographs, "--segments", "psg-mini", "--no-pictures", "--model", counted)
    assert "predict: 3 of 3 images" in run(capsys, *given, "--out", tmp_path / "given")[2]
    _, _, text = run(capsys, "train", "train/frequency_psg_mini", "--out", tmp_path / "f")
    assert "after" not in text


OWN = """
import numpy as np
from own_relation_model import NearIsRelated

class Narrow(NearIsRelated):
    def answer(self, scene):
        found = super().answer(scene)
        return type(found)(found.image_id, found.pairs, found.logits[:, 1:], found.no_relation)

class Undefined(NearIsRelated):
    def answer(self, scene):
        found = super().answer(scene)
        return type(found)(found.image_id, found.pairs, found.logits * np.nan, found.no_relation)

class Raising(NearIsRelated):
    def answer(self, scene):
        return scene.no_such_thing
"""


@pytest.mark.parametrize("out", ["folder", "p.parquet", "p.npy"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Narrow", "must give logits of shape"),
        ("Undefined", "logits that are NaN or infinite"),
        ("Raising", "the model's predict() raised AttributeError"),
    ],
)
def test_a_model_of_ones_own_that_fails_is_named_and_leaves_nothing(
    capsys, tmp_path, name, words, out
):
    own = tmp_path / "own.py"
    own.write_text(OWN)
    shutil.copy(MODEL.rpartition(":")[0], tmp_path)
    before = sorted(tmp_path.iterdir())
    code, data, text = run(
        capsys, "predict", "psg-mini", "--model", f"{own}:{name}", "--out", tmp_path / "new" / out
    )
    assert code == 2
    assert words in data["error"]
    assert f"own.py:{name}" in data["error"]
    assert text.count("\n") == 1
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == before


def test_predicted_objects_are_graded(capsys, tmp_path, photographs, counted):
    """With the annotated masks as detections, matching must find what PredCls is told."""
    run(
        capsys,
        *("predict", photographs, "--segments", "psg-mini", "--model", counted),
        *("--out", tmp_path / "det.parquet"),
    )
    found = list(read_prediction_parquet(tmp_path / "det.parquet"))
    assert [len(image.objects) for image in found] == [
        len(graph.segments) for graph in sorted(CHOSEN, key=lambda g: g.file_name)
    ]
    run(capsys, "predict", "psg-mini", "--model", counted, "--out", tmp_path / "cls.parquet")
    chosen = {graph.image_id for graph in CHOSEN}
    known = [p for p in read_prediction_parquet(tmp_path / "cls.parquet") if p.image_id in chosen]
    assert all(image.objects is None for image in known)
    settings = {"split": "all", "protocol": "openpsg"}
    subset = read_psg_subset(chosen)
    detected = haystack.evaluate(subset, tmp_path / "det.parquet", **settings)
    told = haystack.evaluate(subset, known, **settings)
    for name in ("R@20", "mR@20", "ngR@50"):
        assert detected.metrics[name] == pytest.approx(told.metrics[name], abs=1e-6)
        assert detected.metrics[name] > 0


def test_detected_objects_are_graded_as_sgdet(capsys, tmp_path, photographs, counted):
    """Annotated masks with equal scores are detections that change no rank."""
    chosen = {graph.image_id for graph in CHOSEN}
    subset = read_psg_subset(chosen)
    scored = [
        replace(graph, segments=tuple(replace(s, score=0.5) for s in graph.segments))
        for graph in relocated(subset, tmp_path, images=False).graphs
    ]
    write_psg(replace(subset, graphs=tuple(scored)), tmp_path / "detected.json")
    run(
        capsys,
        *("predict", photographs, "--segments", tmp_path / "detected.json", "--model", counted),
        *("--out", tmp_path / "det.parquet"),
    )
    run(capsys, "predict", "psg-mini", "--model", counted, "--out", tmp_path / "cls.parquet")
    known = [p for p in read_prediction_parquet(tmp_path / "cls.parquet") if p.image_id in chosen]
    settings = {"split": "all"}
    detected = haystack.evaluate(subset, tmp_path / "det.parquet", **settings)
    told = haystack.evaluate(subset, known, **settings)
    assert detected.metrics["InstR"] == 1
    for name in ("R@20", "mR@20", "ngR@50"):
        assert detected.metrics[name] == pytest.approx(told.metrics[name], abs=1e-6)
        assert detected.metrics[name] > 0


def test_a_model_that_cannot_classify_says_so(capsys, tmp_path, counted):
    code, data, _ = run(
        capsys,
        *("predict", "psg-mini", "--model", counted, "--guess-classes"),
        *("--out", tmp_path / "x.parquet"),
    )
    assert code == 2
    assert "asked to classify the objects and gave no classes" in data["error"]
    assert not (tmp_path / "x.parquet").exists()


def read_psg_subset(chosen):
    return replace(MINI, graphs=tuple(g for g in MINI.graphs if g.image_id in chosen))


def test_detections_with_scores(capsys, tmp_path, photographs):
    graph = CHOSEN[0]
    coco_of = {name: number for number, name in enumerate(MINI.vocabulary.object_classes, 1000)}
    content = {
        "categories": [{"id": number, "name": name} for name, number in coco_of.items()],
        "annotations": [
            {
                "image_id": graph.image_id,
                "category_id": 1000 + segment.category,
                "bbox": [*segment.box[:2], *(np.array(segment.box[2:]) - segment.box[:2]).tolist()],
                "score": 0.5,
            }
            for segment in graph.segments
        ],
    }
    (tmp_path / "results.json").write_text(json.dumps(content))
    out = tmp_path / "out"
    code, data, _ = run(
        capsys,
        "predict",
        photographs / Path(graph.file_name).name,
        *("--segments", tmp_path / "results.json", "--model", MODEL, "--out", out),
        *("--pictures", "svg"),
    )
    assert (code, data["images"]) == (0, 1)
    record = read_psg(out / "scene_graphs.json").graphs[0]
    assert record.pan_seg_file_name is None
    assert {segment.score for segment in record.segments} == {0.5}
    (found,) = read_prediction_parquet(out / "predictions.parquet")
    assert set(found.objects.scores.tolist()) == {0.5}
    assert max(record.extra["relation_scores"]) <= 0.25
    assert len(list((out / "pictures").glob("*.svg"))) == 1


def test_broken_pictures_are_quarantined_and_the_others_go_on(capsys, tmp_path, photographs):
    good = photographs / Path(CHOSEN[0].file_name).name
    (photographs / "broken.jpg").write_bytes(good.read_bytes()[:2000])
    shutil.copy(good, photographs / "stranger.jpg")
    out = tmp_path / "out"
    arguments = ("predict", photographs, "--segments", "psg-mini", "--model", MODEL)
    arguments += ("--out", out, "--no-pictures")
    code, data, text = run(capsys, *arguments)
    assert code == 3
    assert data["images"] == 3
    assert [line["input"] for line in data["quarantined"]] == ["broken.jpg", "stranger.jpg"]
    assert "2 images could not be used:\n  broken.jpg: broken or truncated image" in text
    lines = [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]
    assert lines == data["quarantined"]
    assert not (out / "pictures").exists()
    (photographs / "broken.jpg").unlink()
    (photographs / "stranger.jpg").unlink()
    assert run(capsys, *arguments)[0] == 0
    assert not (out / "quarantine.jsonl").exists()


def test_a_tar_of_pictures(capsys, tmp_path):
    graph = CHOSEN[0]
    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        info = tarfile.TarInfo("../" + Path(graph.file_name).name)  # must not leave the folder
        content = MINI.path_of(graph.file_name).read_bytes()
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    out = tmp_path / "out"
    code, *_ = run(
        capsys,
        *("predict", tmp_path / "shard.tar", "--segments", "psg-mini"),
        *("--model", MODEL, "--out", out),
    )
    assert code == 0
    name = Path(graph.file_name).stem
    assert (out / "pictures" / "shard" / f"{name}.jpg").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "shard.tar"]


def test_annotated_images_with_pictures(capsys, tmp_path, counted):
    annotations = tmp_path / "data" / "annotation.json"
    for name in (CHOSEN[0].file_name, CHOSEN[0].pan_seg_file_name):
        (annotations.parent / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(MINI.path_of(name), annotations.parent / name)
    write_psg(read_psg_subset({CHOSEN[0].image_id, CHOSEN[1].image_id}), annotations)
    code, data, _ = run(
        capsys, "predict", annotations, "--model", counted, "--out", tmp_path / "out"
    )
    assert code == 3  # the second picture is not there
    assert "cannot read the picture" in data["quarantined"][0]["reason"]
    (found,) = read_prediction_parquet(tmp_path / "out" / "predictions.parquet")
    assert found.objects is None
    assert found.image_id == CHOSEN[0].image_id


def test_which_images_evaluate_will_look_at_is_said(capsys, tmp_path):
    notes = {
        "all": "21 of them are test images, which are what haystack evaluate grades unless",
        "train": "0 of them are test images",
        "test": "",
    }
    for split, note in notes.items():
        for out in ("p.parquet", "out"):
            arguments = ("--split", split, "--no-pictures", "--out", tmp_path / split / out)
            _, _, text = run(capsys, "predict", "psg-mini", "--model", MODEL, *arguments)
            assert (note in text) if note else ("haystack evaluate" not in text)
    report = haystack.evaluate("psg-mini", tmp_path / "all" / "p.parquet")
    assert "32 predicted images are not of the split 'test': not graded" in str(report)


def test_tables_of_annotated_images(capsys, tmp_path):
    for name in ("p.parquet", "p.npy"):
        code, data, _ = run(
            capsys,
            *("predict", "psg-mini", "--split", "test", "--model", MODEL),
            *("--out", tmp_path / name, "--overlap", "boxes"),
        )
        assert (code, data["images"]) == (0, 21)
        report = haystack.evaluate("psg-mini", tmp_path / name)
        assert report.to_dict()["per_predicate"]["beside"]["P-AUC"] > 0.9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["photographs", "--model", MODEL], "pictures need --segments"),
        (["psg-mini", "--model", MODEL, "--segments", "x"], "annotations bring their own segments"),
        (["psg-mini", "x.jpg", "--model", MODEL], "one annotation file, or pictures"),
        (["none.jpg", "--model", MODEL, "--segments", "psg-mini"], "no such picture"),
        (["photographs", "--model", MODEL, "--segments", "none"], "no such file or folder"),
        (["photographs", "--model", "none", "--segments", "psg-mini"], "no such relation model"),
        (["photographs", "--model", MODEL, "--segments", "psg-mini", "--top", "0"], "--top of at"),
        (
            ["photographs", "--model", MODEL, "--segments", "psg-mini", "--out", "p.npy"],
            "a .npy file cannot hold the objects",
        ),
        (
            ["photographs", "--model", MODEL, "--segments", "psg-mini", "--out", "file"],
            "expected a folder, or a name that ends in",
        ),
    ],
)
def test_wrong_usage_is_one_sentence(capsys, tmp_path, monkeypatch, photographs, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    code, data, err = run(capsys, "predict", *arguments)
    assert code == 2
    assert words in data["error"]
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "photographs"]


def test_file_names_stay_in_the_folder_and_apart():
    names = _Names()
    keys = ["a.jpg", "a.png", "A.gif", "../../x.jpg", "/etc/y.jpg", "..", "b.v1.jpg", "d/a.jpg"]
    assert [names.of(key) for key in keys] == (
        ["a", "a-2", "A-3", "x", "etc/y", "image", "b.v1", "d/a"]
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("wall-other-merged", "wall"),
        ("tree-merged", "tree"),
        ("water-other", "water"),
        ("door-stuff", "door"),
        ("wall-brick", "wall-brick"),
        ("person", "person"),
        ("-other", "-other"),
    ],
)
def test_names_for_people(name, shown):
    assert display_name(name) == shown
