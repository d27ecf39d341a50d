"""Mask2Former, OneFormer and EoMT of the package transformers, tiny and with random weights."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from tiny_transformers import BUILD

from haystack.errors import InputError, MissingDependencyError
from haystack.pipeline.config import SegmentConfig, WorkspaceConfig, with_absolute_paths
from haystack.pipeline.segmenters.base import check_segmentation
from haystack.pipeline.segmenters.factory import open_segmenter
from haystack.pipeline.segmenters.model import panoptic_record
from haystack.vocabulary import Vocabulary, psg_vocabulary

transformers = pytest.importorskip("transformers")
PSG = psg_vocabulary()
CONFIG = SegmentConfig(
    kind="transformers", score_threshold=0.05, overlap_threshold=0.1, batch_size=2
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name, build in BUILD.items():
        (root / name).mkdir()
        build(root / name)
    return root


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("nothing may be fetched")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def picture(height, width, seed=0):
    generator = np.random.default_rng(seed)
    levels = generator.integers(0, 256, (6, 9, 3), dtype=np.uint8)
    return Image.fromarray(levels).resize((width, height))


def opened(folder, **changes):
    return open_segmenter(replace(CONFIG, model=str(folder), **changes), PSG)


@pytest.mark.parametrize("name", BUILD)
def test_segments_of_pictures_of_several_sizes(folders, name):
    segmenter = opened(folders / name)
    sizes = [(60, 90), (50, 75), (60, 90), (90, 60)]
    pictures = [(str(n), picture(*size, n)) for n, size in enumerate(sizes)]
    results = segmenter.segment_many(pictures)
    for (key, one), size, result in zip(pictures, sizes, results, strict=True):
        check_segmentation(result, size, PSG)
        assert result.segments
        assert all(0.05 < segment.score <= 1 for segment in result.segments)
        stuff = [s.category for s in result.segments if not PSG.is_thing(s.category)]
        assert len(stuff) == len(set(stuff))
        alone = segmenter.segment(key, one)
        assert (alone.id_map == result.id_map).mean() > 0.99, "whatever is beside it"


@pytest.mark.parametrize("name", BUILD)
def test_what_transformers_itself_finds(folders, name):
    """All queries at once, as its documentation has it; stuff is joined afterwards."""
    segmenter = opened(folders / name)
    one = picture(60, 90)
    loaded = segmenter.model
    with torch.no_grad():
        output = loaded.network(**loaded.prepare([one]))
    settings = {"threshold": 0.05, "overlap_mask_area_threshold": 0.1}
    if name != "eomt":
        settings["label_ids_to_fuse"] = set()
    (found,) = loaded.post_process(output, target_sizes=[(60, 90)], **settings)
    entries = [(s["id"], s["label_id"], s["score"]) for s in found["segments_info"]]
    expected = panoptic_record("x", found["segmentation"].numpy().astype(int), entries, PSG)
    result = segmenter.segment("x", one)
    assert len(result.segments) > 1
    assert result.segments == expected.segments
    np.testing.assert_array_equal(result.id_map, expected.id_map)


def test_nothing_found_and_thresholds_of_its_own(folders):
    nothing = opened(folders / "eomt", score_threshold=1.0).segment("x", picture(60, 90))
    assert nothing.segments == ()
    assert not nothing.id_map.any()
    default = opened(folders / "eomt", score_threshold=None).segment("x", picture(60, 90))
    assert all(segment.score > 0.8 for segment in default.segments), "EoMT's own"


def test_lower_precision(folders):
    result = opened(folders / "mask2former", precision="bfloat16").segment("x", picture(60, 90))
    check_segmentation(result, (60, 90), PSG)
    assert result.segments


def test_the_fingerprint_follows_the_folders_files(folders, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folders / "eomt", copy)
    before = opened(folders / "eomt").fingerprint()
    assert opened(copy, batch_size=7).fingerprint() == before
    assert opened(copy, score_threshold=0.4).fingerprint() != before
    settings = json.loads((copy / "preprocessor_config.json").read_text())
    (copy / "preprocessor_config.json").write_text(json.dumps({**settings, "do_pad": False}))
    assert opened(copy).fingerprint() != before


def test_a_model_that_was_downloaded_is_found_by_its_name(folders, tmp_path, monkeypatch):
    """In the hub's cache: a folder a model, in it a reference to the newest of its snapshots."""
    model = tmp_path / "models--tiny--eomt"
    shutil.copytree(folders / "eomt", model / "snapshots" / "0123abc")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0123abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    by_name, by_folder = opened("tiny/eomt"), opened(folders / "eomt")
    assert by_name.fingerprint() == by_folder.fingerprint()
    one = picture(60, 90)
    assert by_name.segment("x", one).segments == by_folder.segment("x", one).segments


def test_missing_tensors_are_never_random(folders, tmp_path):
    from safetensors.torch import load_file, save_file

    copy = tmp_path / "copy"
    shutil.copytree(folders / "eomt", copy)
    tensors = load_file(copy / "model.safetensors")
    del tensors["class_predictor.bias"]
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"1 of the model's tensors .* class_predictor\.bias"):
        opened(copy).segment("x", picture(60, 90))
    (copy / "model.safetensors").unlink()
    with pytest.raises(InputError, match="cannot load the model"):
        opened(copy).segment("x", picture(60, 90))


def test_models_that_are_not_here_or_are_none(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"needs segment\.model, a name such as"):
        opened("")
    for name in ("nobody/mask2former", "./nowhere/at/all"):
        with pytest.raises(InputError, match=f"run: hf download {name}"):
            opened(name)
    with pytest.raises(InputError, match="no configuration of a model of transformers"):
        opened(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(InputError, match=r"mask2former, .* got bert"):
        opened(tmp_path)
    other = Vocabulary(("person",), ("sky",), ("on",))
    with pytest.raises(InputError, match="are not among the vocabulary's object classes"):
        open_segmenter(replace(CONFIG, model=str(folders / "mask2former")), other)


def test_a_folder_becomes_absolute_and_a_name_stays(folders, monkeypatch):
    monkeypatch.chdir(folders)
    for model, saved in (("eomt", str(folders / "eomt")), ("facebook/x", "facebook/x")):
        settings = WorkspaceConfig(segment=replace(CONFIG, model=model))
        assert with_absolute_paths(settings).segment.model == saved


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'haystack-psg\[transformers\]'"):
        opened("facebook/x")


def test_an_image_too_thin_to_be_prepared_is_set_aside_alone(folders):
    images = [("a", picture(60, 90)), ("thin", Image.new("RGB", (1, 3000))), ("b", picture(60, 90))]
    first, thin, last = opened(folders / "eomt").segment_many(images)
    assert isinstance(thin, InputError)
    assert "takes no image of 1x3000 pixels" in str(thin)
    assert (first.image_id, last.image_id) == ("a", "b")
