"""A trunk's weights from the files of three worlds."""

from __future__ import annotations

import logging

import pytest
import torch
from torchvision.models import resnet50, resnet101
from torchvision.models.detection import fasterrcnn_resnet50_fpn

from haystack.errors import InputError
from haystack.models.checkpoints.trunk import load_trunk
from haystack.models.relation.features.trunk import Trunk


def numbered(tensors):
    """Every tensor one value of its own, in a few bytes."""
    return {
        name: torch.tensor(place, dtype=tensor.dtype).expand(tensor.shape)
        for place, (name, tensor) in enumerate(tensors.items())
    }


@pytest.fixture(scope="module")
def trunk():
    torch.manual_seed(0)
    return Trunk("resnet50")


@pytest.fixture(scope="module")
def torchvision_names():
    with torch.device("meta"):
        return fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None).state_dict()


def mmdet_names():
    with torch.device("meta"):
        net = resnet50()
    names = {f"backbone.{k}": v for k, v in net.state_dict().items() if not k.startswith("fc.")}
    for level, width in enumerate((256, 512, 1024, 2048)):
        names[f"neck.lateral_convs.{level}.conv.weight"] = torch.empty(256, width, 1, 1)
        names[f"neck.lateral_convs.{level}.conv.bias"] = torch.empty(256)
        names[f"neck.fpn_convs.{level}.conv.weight"] = torch.empty(256, 256, 3, 3)
        names[f"neck.fpn_convs.{level}.conv.bias"] = torch.empty(256)
    return names


def write(path, tensors, **others):
    torch.save({"state_dict": tensors, **others}, path)
    return path


def test_mmdets_detectors(trunk, tmp_path):
    names = {**mmdet_names(), "rpn_head.rpn_conv.bias": torch.empty(256)}
    state = numbered(names)
    load_trunk(trunk, write(tmp_path / "panoptic_fpn.pth", state, meta={"CLASSES": ("a",)}))
    ours = trunk.state_dict()
    assert len(ours) == len(names) - 1
    for name, tensor in state.items():
        if name.startswith("backbone."):
            assert (ours[name] == tensor).all(), name
    for kind, blocks in (("lateral_convs", "inner_blocks"), ("fpn_convs", "layer_blocks")):
        for level in range(4):
            for what in ("weight", "bias"):
                theirs = state[f"neck.{kind}.{level}.conv.{what}"]
                assert (ours[f"fpn.{blocks}.{level}.0.{what}"] == theirs).all()


@pytest.mark.parametrize("older", [False, True])
def test_torchvisions_detectors(trunk, tmp_path, torchvision_names, older):
    """Also the names that files had before torchvision 0.14, and files without batch counters."""
    state = numbered(torchvision_names)
    if older:
        state = {
            name.replace(".0.weight", ".weight").replace(".0.bias", ".bias")
            if ".fpn." in name
            else name: tensor
            for name, tensor in state.items()
            if not name.endswith("num_batches_tracked")
        }
        assert "backbone.fpn.inner_blocks.3.bias" in state
    load_trunk(trunk, write(tmp_path / "fasterrcnn.pth", state))
    ours = trunk.state_dict()
    pick = state["backbone.body.layer3.5.conv2.weight"].flatten()[0]
    assert (ours["backbone.layer3.5.conv2.weight"] == pick).all()
    name = "backbone.fpn.layer_blocks.2.bias" if older else "backbone.fpn.layer_blocks.2.0.bias"
    assert (ours["fpn.layer_blocks.2.0.bias"] == state[name].flatten()[0]).all()


def test_classifiers_leave_the_pyramid_random_and_say_so(trunk, tmp_path, caplog):
    with torch.device("meta"):
        net = resnet50()
    state = numbered(net.state_dict())
    before = {k: v.clone() for k, v in trunk.state_dict().items() if k.startswith("fpn.")}
    with caplog.at_level(logging.WARNING):
        load_trunk(trunk, write(tmp_path / "resnet50.pth", state))
    assert "pyramid's convolutions are random" in caplog.text
    ours = trunk.state_dict()
    assert (ours["backbone.conv1.weight"] == state["conv1.weight"].flatten()[0]).all()
    assert all(torch.equal(ours[name], tensor) for name, tensor in before.items())


def test_no_file_is_said_aloud(trunk, caplog):
    before = {name: tensor.clone() for name, tensor in trunk.state_dict().items()}
    with caplog.at_level(logging.WARNING):
        load_trunk(trunk, None)
    assert "random weights" in caplog.text
    assert all(torch.equal(before[name], tensor) for name, tensor in trunk.state_dict().items())


def test_every_wrong_tensor_is_named(trunk, tmp_path):
    state = numbered(mmdet_names())
    before = trunk.state_dict()["backbone.conv1.weight"].clone()
    del state["backbone.layer1.0.conv1.weight"]
    state["neck.fpn_convs.4.conv.bias"] = torch.zeros(256)
    state["backbone.bn1.bias"] = torch.zeros(65)
    with pytest.raises(InputError) as caught:
        load_trunk(trunk, write(tmp_path / "broken.pth", state))
    message = str(caught.value)
    assert "missing backbone.layer1.0.conv1.weight" in message
    assert "unexpected neck.fpn_convs.4.conv.bias" in message
    assert "backbone.bn1.bias of shape [65] instead of [64]" in message
    assert torch.equal(trunk.state_dict()["backbone.conv1.weight"], before)


def test_other_depths_and_other_files_are_refused(trunk, tmp_path):
    with torch.device("meta"):
        net = resnet101()
    deeper = numbered(net.state_dict())
    with pytest.raises(InputError, match=r"unexpected layer3\.6\.conv1\.weight"):
        load_trunk(trunk, write(tmp_path / "resnet101.pth", deeper))
    with pytest.raises(InputError, match="got tensors named encoder"):
        load_trunk(trunk, write(tmp_path / "vit.pth", {"encoder.weight": torch.zeros(2)}))
