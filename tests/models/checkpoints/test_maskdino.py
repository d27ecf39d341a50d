"""Official MaskDINO checkpoints: every name, and no other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "maskdino"))

from seeded_maskdino import THIN, official_shapes, thin_shapes

from haystack.errors import InputError
from haystack.models.checkpoints.maskdino import from_state_dict, load_maskdino, to_official
from haystack.models.maskdino.swin import relative_positions

PREDICTOR = "sem_seg_head.predictor."


def numbered(shapes):
    """Each tensor one value of its own, in a few bytes; aliases have their first name's."""
    values = {}
    state = {}
    for name, (shape, dtype) in shapes.items():
        if name.endswith("relative_position_index"):
            state[name] = relative_positions()
            continue
        key = name.replace("decoder.norm.", "decoder_norm.")
        parts = key.split("bbox_embed.")
        if len(parts) == 2:
            key = "bbox_embed." + parts[1][parts[1].index("layers.") :]
        value = values.setdefault(key, float(len(values)))
        state[name] = torch.tensor(value, dtype=dtype).expand(shape)
    return state


@pytest.fixture(scope="module", params=["resnet50", "swin_large"])
def official(request):
    return request.param, numbered(official_shapes(request.param))


@pytest.fixture
def thin():
    return numbered({name: (shape, torch.float32) for name, shape in thin_shapes().items()})


def test_every_tensor_of_an_official_file_finds_its_place(official):
    backbone, state = official
    assert len(state) == {"resnet50": 720, "swin_large": 816}[backbone]
    network = from_state_dict(state)
    assert network.config.backbone == backbone
    assert not network.training
    back = to_official(network)
    unused = {f"{PREDICTOR}label_enc.weight", "criterion.empty_weight"}
    assert back.keys() == state.keys() - unused
    for name, tensor in back.items():
        assert torch.equal(tensor, state[name]), name
    dtypes = {name: dtype for name, (_, dtype) in official_shapes(backbone).items()}
    assert all(tensor.dtype == dtypes[name] for name, tensor in back.items())


def test_a_broken_official_file_is_refused_by_name(official):
    _, state = official
    name = f"{PREDICTOR}decoder.layers.4.linear1.weight"
    rest = {other: tensor for other, tensor in state.items() if other != name}
    with pytest.raises(InputError, match=f"classes: missing {name}$"):
        from_state_dict(rest)
    message = rf"classes: {name} of shape \[2, 3\] instead of \[2048, 256\]$"
    with pytest.raises(InputError, match=message):
        from_state_dict({**rest, name: torch.zeros(2, 3)})


def test_names_of_a_resnet_are_torchvisions(thin):
    network = from_state_dict(thin, THIN)
    ours = network.state_dict()
    for name, theirs in (
        ("conv1.weight", "stem.conv1.weight"),
        ("bn1.running_var", "stem.conv1.norm.running_var"),
        ("layer1.0.downsample.0.weight", "res2.0.shortcut.weight"),
        ("layer1.0.downsample.1.bias", "res2.0.shortcut.norm.bias"),
        ("layer4.2.conv3.weight", "res5.2.conv3.weight"),
        ("layer3.5.bn2.running_mean", "res4.5.conv2.norm.running_mean"),
    ):
        assert torch.equal(ours[f"backbone.{name}"], thin[f"backbone.{theirs}"])


@pytest.mark.parametrize(
    "name",
    [
        "backbone.res4.5.conv2.norm.running_var",
        "sem_seg_head.pixel_decoder.transformer.level_embed",
        f"{PREDICTOR}decoder.bbox_embed.1.layers.2.bias",
        f"{PREDICTOR}label_enc.weight",
        "criterion.empty_weight",
    ],
)
def test_one_tensor_missing_misshapen_or_too_many_is_named(thin, name):
    tensor = thin.pop(name)
    with pytest.raises(InputError, match=f"missing {name}$"):
        from_state_dict(thin, THIN)
    with pytest.raises(InputError, match=rf"{name} of shape \[7\] instead of"):
        from_state_dict({**thin, name: torch.zeros(7)}, THIN)
    with pytest.raises(InputError, match=f"unexpected {name}.more$"):
        from_state_dict({**thin, name: tensor, f"{name}.more": tensor}, THIN)


def test_everything_wrong_is_named_at_once(thin):
    del thin["criterion.empty_weight"]
    thin["criterion.other"] = torch.zeros(1)
    with pytest.raises(InputError) as caught:
        from_state_dict(thin, THIN)
    assert "missing criterion.empty_weight; unexpected criterion.other" in str(caught.value)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("decoder.bbox_embed.0.layers.1.weight", "_bbox_embed.layers.1.weight"),
        ("bbox_embed.1.layers.0.bias", "_bbox_embed.layers.0.bias"),
        ("decoder.norm.weight", "decoder_norm.weight"),
    ],
)
def test_two_names_of_a_tensor_must_agree(thin, alias, name):
    thin[f"{PREDICTOR}{alias}"] = thin[f"{PREDICTOR}{alias}"] + 1
    with pytest.raises(InputError, match=f"{alias} differs from {PREDICTOR}{name}"):
        from_state_dict(thin, THIN)


def test_positions_in_windows_must_be_those_of_windows():
    state = numbered(official_shapes("swin_large"))
    name = "backbone.layers.2.blocks.17.attn.relative_position_index"
    state[name] = state[name].flip(0)
    with pytest.raises(InputError, match=f"{name} is not the table of positions"):
        from_state_dict(state)


def test_a_file_of_the_release(thin, tmp_path):
    path = tmp_path / "maskdino.pth"
    torch.save({"model": thin, "iteration": 9, "__author__": "somebody"}, path)
    network = load_maskdino(path, THIN)
    expected = thin[f"{PREDICTOR}class_embed.bias"]
    assert torch.equal(network.query_decoder.class_embed.bias, expected)
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_half_precision_is_widened(thin):
    network = from_state_dict({name: tensor.half() for name, tensor in thin.items()}, THIN)
    assert {tensor.dtype for tensor in network.state_dict().values()} == {torch.float32}


def test_objects_in_a_file_are_never_built(thin, tmp_path):
    path = tmp_path / "maskdino.pth"
    torch.save({"model": thin, "cfg": Path("x")}, path)
    with pytest.raises(InputError, match="which is more than tensors"):
        load_maskdino(path, THIN)


def test_other_models_are_refused():
    with pytest.raises(InputError, match="expected a MaskDINO on ResNet-50 or Swin-L"):
        from_state_dict({"encoder.weight": torch.zeros(2)})
