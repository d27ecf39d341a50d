"""detectron2 as a segmenter: against a fake of its interface, and itself where it is installed."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

import fake_detectron2
from fake_detectron2 import SEPARATED, STANDARD

from haystack.errors import HaystackError, InputError, MissingDependencyError
from haystack.pipeline.config import SegmentConfig
from haystack.pipeline.segmenters.base import check_segmentation
from haystack.pipeline.segmenters.detectron2 import found_in, panoptic_classes
from haystack.pipeline.segmenters.factory import open_segmenter
from haystack.pipeline.segmenters.model import panoptic_record
from haystack.vocabulary import Vocabulary, psg_vocabulary

PSG = psg_vocabulary()
TURNED = replace(PSG, stuff_classes=PSG.stuff_classes[::-1])
COLOR = (10, 20, 30)  # blue, green, red


@pytest.fixture
def fake(monkeypatch):
    for name, module in fake_detectron2.modules().items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def config(tmp_path):
    (tmp_path / "panoptic.yaml").write_text(
        "DATASETS: {TEST: [coco_2017_val_panoptic_separated]}\n"
    )
    torch.save({"model": {"color": torch.tensor(COLOR).float()}}, tmp_path / "model.pth")
    return SegmentConfig(
        kind="detectron2",
        config=str(tmp_path / "panoptic.yaml"),
        weights=str(tmp_path / "model.pth"),
    )


def test_numbers_of_both_kinds_of_data_sets():
    standard = panoptic_classes(STANDARD, PSG)
    assert standard == {(number < 80, number): number for number in range(133)}
    separated = panoptic_classes(SEPARATED, PSG)
    things = {(True, number): number for number in range(80)}
    stuff = {(False, number): 79 + number for number in range(1, 54)}
    assert separated == {**things, **stuff}
    assert panoptic_classes(SEPARATED, TURNED)[False, 53] == 80
    with pytest.raises(InputError, match="are not among the vocabulary's object classes"):
        panoptic_classes(STANDARD, Vocabulary(("person",), ("sky",), ("on",)))


def test_records_in_detectron2s_format():
    """As its panoptic FPN (0.6) and MaskDINO write them."""
    ids = torch.tensor([[0, 1, 1], [2, 2, 3]], dtype=torch.int32)
    segments = [
        {"id": 1, "isthing": True, "score": 0.98, "category_id": 52, "instance_id": 1},
        {"id": 2, "isthing": False, "category_id": 37, "area": 2},
        {"id": 3, "isthing": False, "category_id": 37, "area": 1},
    ]
    found = found_in({"sem_seg": None, "panoptic_seg": (ids, segments)})
    classes = panoptic_classes(SEPARATED, PSG)
    record = panoptic_record(
        "x", found.id_map, [(s.id, classes[s.number], s.score) for s in found.segments], PSG
    )
    banana_or_so, tree = record.segments
    assert PSG.object_classes[banana_or_so.category] == SEPARATED.thing_classes[52]
    assert PSG.object_classes[tree.category] == "tree-merged"
    assert (banana_or_so.score, tree.score, tree.area) == (0.98, None, 3)
    assert record.id_map.tolist() == [[0, 1, 1], [2, 2, 2]]
    for output in ({"instances": None}, {"panoptic_seg": (ids, None)}):
        with pytest.raises(HaystackError, match="no panoptic_seg with a list of segments"):
            found_in(output)


@pytest.mark.usefixtures("fake")
def test_a_users_configuration_and_weights(config, capsys):
    segmenter = open_segmenter(replace(config, batch_size=2), PSG)
    levels = np.zeros((40, 60, 3), np.uint8)
    levels[10:20, 30:50] = COLOR[::-1]  # red, green, blue, as everywhere in Haystack
    results = segmenter.segment_many([(key, Image.fromarray(levels)) for key in "ab"])
    for key, result in zip("ab", results, strict=True):
        assert result.image_id == key
        check_segmentation(result, (40, 60), PSG)
        sky, person = result.segments
        assert (PSG.object_classes[sky.category], sky.score) == ("sky-other-merged", None)
        assert (person.category, person.score, person.box) == (0, 0.75, (30, 10, 50, 20))
    said = capsys.readouterr()
    assert said.out == "", "results alone go there"
    assert "criterion" in said.err


@pytest.mark.usefixtures("fake")
def test_arrays_of_the_model_zoo_are_read_and_never_unpickled(config, tmp_path, capsys):
    path = tmp_path / "model.pkl"
    arrays = {"color": np.float32(COLOR)}
    path.write_bytes(pickle.dumps({"model": arrays, "__author__": "third party"}, 2))
    picture = Image.new("RGB", (4, 4), COLOR[::-1])
    result = open_segmenter(replace(config, weights=str(path)), PSG).segment("a", picture)
    assert [segment.category for segment in result.segments] == [0]

    class Hostile:
        def __reduce__(self):
            return print, ("executed",)

    path.write_bytes(pickle.dumps({"model": Hostile()}, 2))
    with pytest.raises(InputError, match="refused the global"):
        open_segmenter(replace(config, weights=str(path)), PSG).segment("a", picture)
    path.write_bytes(pickle.dumps({"model": [1]}, 2))
    with pytest.raises(InputError, match="expected arrays by name"):
        open_segmenter(replace(config, weights=str(path)), PSG).segment("a", picture)
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("fake")
def test_gaps_in_weights_are_never_random(config):
    picture = Image.new("RGB", (4, 4))
    for tensors, words in (
        ({"other": torch.ones(3)}, "1 of its tensors are missing, such as color"),
        ({"color": torch.ones(4)}, "not this model's weights: .*size mismatch"),
    ):
        torch.save({"model": tensors}, config.weights)
        with pytest.raises(InputError, match=words):
            open_segmenter(config, PSG).segment("a", picture)


@pytest.mark.usefixtures("fake")
def test_the_fingerprint_follows_configuration_and_weights(config):
    before = open_segmenter(config, PSG).fingerprint()
    assert open_segmenter(replace(config, device="cuda"), PSG).fingerprint() == before
    with Path(config.config).open("a") as stream:
        stream.write("INPUT: {FORMAT: RGB}\n")
    changed = open_segmenter(config, PSG).fingerprint()
    assert changed["config"] != before["config"]
    torch.save({"model": {"color": torch.ones(3)}}, config.weights)
    assert open_segmenter(config, PSG).fingerprint()["weights"] != before["weights"]


@pytest.mark.usefixtures("fake")
def test_what_a_project_declares_is_said_by_setup(config, tmp_path, monkeypatch):
    """As MaskDINO's ``add_maskdino_config``."""
    (tmp_path / "project_of_mine.py").write_text(
        "from fake_detectron2 import CfgNode\n"
        "def add_config(cfg):\n    cfg.MODEL.Mine = CfgNode(TEST=0)\n"
    )
    with Path(config.config).open("a") as stream:
        stream.write("MODEL: {Mine: {TEST: 7}}\n")
    with pytest.raises(InputError, match=r"Non-existent config key: Mine.*segment\.setup"):
        open_segmenter(config, PSG)
    monkeypatch.chdir(tmp_path)
    good = replace(config, setup=["project_of_mine:add_config"])
    assert "TEST: 7" in open_segmenter(good, PSG)._cfg.dump()
    for setup, words in (
        ("project_of_mine", "expects package.module:function, got 'project_of_mine'"),
        ("project_of_mine:nothing", "'project_of_mine' has no function 'nothing'"),
        ("nowhere_at_all:f", "cannot import the module 'nowhere_at_all'"),
    ):
        with pytest.raises(InputError, match=words):
            open_segmenter(replace(config, setup=[setup]), PSG)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config": ""}, r"needs segment\.config=FILE"),
        ({"config": "nowhere.yaml"}, r"segment\.config names a file that does not exist"),
        ({"weights": ""}, r"needs segment\.weights=FILE"),
        ({"weights": "none.pth"}, r"not exist; give the weights that segment\.config is of$"),
        ({"precision": "bfloat16"}, r"segment\.precision has no meaning for .*detectron2"),
        ({"score_threshold": 0.3}, r"segment\.score_threshold has no meaning"),
        ({"compile": True}, r"segment\.compile has no meaning"),
    ],
)
def test_settings_that_cannot_be(config, changes, words):
    with pytest.raises(InputError, match=words):
        open_segmenter(replace(config, **changes), PSG)


@pytest.mark.usefixtures("fake")
def test_data_sets_without_names_and_models_that_are_not_panoptic(config):
    Path(config.config).write_text("DATASETS: {TEST: [mine]}\n")
    with pytest.raises(InputError, match="knows no thing_classes and stuff_classes"):
        open_segmenter(config, PSG)
    Path(config.config).write_text("DATASETS: {TEST: []}\n")
    with pytest.raises(InputError, match=r"names no data set in DATASETS\.TEST"):
        open_segmenter(config, PSG)
    Path(config.config).write_text(
        "DATASETS: {TEST: [coco_2017_val_panoptic]}\nMODEL: {META_ARCHITECTURE: RCNN}\n"
    )
    with pytest.raises(HaystackError, match="no panoptic_seg with a list of segments"):
        open_segmenter(config, PSG).segment("a", Image.new("RGB", (4, 4)))


def test_without_detectron2_the_way_to_it_is_named(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "detectron2", None)
    monkeypatch.setitem(sys.modules, "detectron2.config", None)
    with pytest.raises(MissingDependencyError, match=r"\[detectron2\]', then: pip install --no-bu"):
        open_segmenter(config, PSG)


def test_the_real_one(tmp_path):
    """A panoptic FPN with random weights; its metadata and records are those of the tests above."""
    pytest.importorskip("detectron2.engine", reason="needs a real detectron2")
    pytest.importorskip("detectron2.config")
    from detectron2.config import get_cfg
    from detectron2.data import MetadataCatalog
    from detectron2.engine import DefaultPredictor
    from detectron2.modeling import build_model

    for expected in (STANDARD, SEPARATED):
        real = MetadataCatalog.get(expected.name)
        for key in (
            "thing_classes",
            "stuff_classes",
            "thing_dataset_id_to_contiguous_id",
            "stuff_dataset_id_to_contiguous_id",
        ):
            assert getattr(real, key) == getattr(expected, key), (expected.name, key)

    cfg = get_cfg()
    cfg.MODEL.META_ARCHITECTURE = "PanopticFPN"
    cfg.MODEL.MASK_ON = True
    cfg.MODEL.DEVICE = "cpu"
    cfg.MODEL.WEIGHTS = ""
    cfg.MODEL.BACKBONE.NAME = "build_resnet_fpn_backbone"
    cfg.MODEL.RESNETS.DEPTH = 18
    cfg.MODEL.RESNETS.RES2_OUT_CHANNELS = 64
    cfg.MODEL.RESNETS.OUT_FEATURES = ["res2", "res3", "res4", "res5"]
    cfg.MODEL.FPN.IN_FEATURES = ["res2", "res3", "res4", "res5"]
    cfg.MODEL.ANCHOR_GENERATOR.SIZES = [[32], [64], [128], [256], [512]]
    cfg.MODEL.RPN.IN_FEATURES = ["p2", "p3", "p4", "p5", "p6"]
    cfg.MODEL.ROI_HEADS.NAME = "StandardROIHeads"
    cfg.MODEL.ROI_HEADS.IN_FEATURES = ["p2", "p3", "p4", "p5"]
    cfg.MODEL.ROI_BOX_HEAD.NAME = "FastRCNNConvFCHead"
    cfg.MODEL.ROI_BOX_HEAD.NUM_FC = 1
    cfg.MODEL.ROI_MASK_HEAD.NAME = "MaskRCNNConvUpsampleHead"
    cfg.MODEL.SEM_SEG_HEAD.LOSS_WEIGHT = 0.5
    cfg.DATASETS.TEST = ("coco_2017_val_panoptic_separated",)
    cfg.INPUT.MIN_SIZE_TEST = 96
    (tmp_path / "panoptic.yaml").write_text(cfg.dump())
    torch.manual_seed(0)
    model = build_model(cfg)
    torch.save({"model": model.state_dict()}, tmp_path / "model.pth")
    config = SegmentConfig(
        kind="detectron2",
        config=str(tmp_path / "panoptic.yaml"),
        weights=str(tmp_path / "model.pth"),
    )
    levels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    picture = Image.fromarray(levels)
    result = open_segmenter(config, PSG).segment("a", picture)
    check_segmentation(result, (60, 90), PSG)

    predictor = DefaultPredictor(cfg)
    predictor.model.load_state_dict(model.state_dict())
    ids, segments = predictor(levels[:, :, ::-1])["panoptic_seg"]
    assert segments
    kept = [s for s in segments if (ids == s["id"]).any()]
    for segment in kept:
        mask = (ids == segment["id"]).numpy()
        (ours,) = set(result.id_map[mask].tolist())
        (record,) = (s for s in result.segments if s.id == ours)
        names = SEPARATED.thing_classes if segment["isthing"] else SEPARATED.stuff_classes
        short = PSG.object_classes[record.category].replace("-other", "").replace("-merged", "")
        assert short == names[segment["category_id"]]
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"model": arrays}, 2))
    again = open_segmenter(replace(config, weights=str(tmp_path / "model.pkl")), PSG)
    np.testing.assert_array_equal(again.segment("a", picture).id_map, result.id_map)
    torch.save({"model": dict(list(model.state_dict().items())[1:])}, tmp_path / "model.pth")
    with pytest.raises(InputError, match="1 of its tensors are missing"):
        open_segmenter(config, PSG).segment("a", picture)
