"""OpenPSG's checkpoints by name and shape, without the hundreds of megabytes of their values."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from haystack.cli.parser import main
from haystack.errors import InputError
from haystack.models.checkpoints.openpsg import OPENPSG, from_state_dict, load_openpsg
from haystack.models.relation.files import load_relation_model
from haystack.models.relation.inputs import SceneInput, all_pairs
from haystack.vocabulary import Vocabulary, psg_vocabulary

KEYS = Path(__file__).parents[2] / "data" / "openpsg" / "openpsg_state_dict_keys.tsv.gz"
MODELS = {
    "vctree/panoptic_fpn_r50_fpn_1x_predcls_psg.py": ("vctree", "resnet50", 488),
    "vctree/panoptic_fpn_r50_fpn_1x_sgdet_psg.py": ("vctree", "resnet50", 488),
    "vctree/panoptic_fpn_r101_fpn_1x_predcls_psg.py": ("vctree", "resnet101", 794),
    "motifs/panoptic_fpn_r50_fpn_1x_predcls_psg.py": ("motifs", "resnet50", 449),
    "gpsnet/panoptic_fpn_r50_fpn_1x_predcls_psg.py": ("gpsnet", "resnet50", 441),
    "imp/panoptic_fpn_r50_fpn_1x_predcls_psg.py": ("imp", "resnet50", 427),
}
IMP = "imp/panoptic_fpn_r50_fpn_1x_predcls_psg.py"


def read_keys():
    listed = {}
    with gzip.open(KEYS, "rt") as lines:
        for line in lines:
            model, name, shape = line.rstrip("\n").split("\t")
            sides = () if shape == "scalar" else tuple(int(side) for side in shape.split("x"))
            listed.setdefault(model, {})[name] = sides
    return listed


LISTED = read_keys()


def filled(value, name, shape):
    """One value seen everywhere: a tensor of any size in a few bytes."""
    dtype = torch.int64 if name.endswith("num_batches_tracked") else torch.float32
    return torch.tensor(value, dtype=dtype).expand(shape)


def make_state(model):
    return {
        name: filled(place, name, shape)
        for place, (name, shape) in enumerate(LISTED[model].items())
    }


def ours_of(name):
    """Where a tensor belongs, written out by hand; None: set aside."""
    part, _, rest = name.partition(".")
    if part == "backbone":
        return f"features.trunk.{name}"
    if part == "neck":
        kind, level, _, what = rest.split(".")
        blocks = {"lateral_convs": "inner_blocks", "fpn_convs": "layer_blocks"}[kind]
        return f"features.trunk.fpn.{blocks}.{level}.0.{what}"
    if part == "relation_head":
        extractor = rest.startswith(("bbox_roi_extractor.", "relation_roi_extractor."))
        return f"{'features' if extractor else 'head'}.{rest}"
    return None


@pytest.mark.parametrize("model", MODELS)
def test_every_listed_tensor_finds_its_place(model):
    head, trunk, count = MODELS[model]
    state = make_state(model)
    assert len(state) == count
    converted = from_state_dict(state, psg_vocabulary())
    config = converted.network.config
    assert (config.head, config.trunk) == (head, trunk)
    assert config.openpsg_quirks
    places = converted.network.state_dict()
    assert len(converted.set_aside) + len(places) == count
    for name, tensor in state.items():
        ours = ours_of(name)
        if ours is None:
            assert name in converted.set_aside
            continue
        # OpenPSG's tree decoder has its table and its classifier under two names each.
        twice = {"embed_layer": "obj_embed", "embed_out_layer": "out"}
        if "decoder_rnn" in name and any(alias in name for alias in (*twice, *twice.values())):
            assert places[ours].shape == tensor.shape
        else:
            assert places[ours].flatten()[0] == tensor.flatten()[0], name
    assert not converted.network.training
    for name, parameter in converted.network.named_parameters():
        assert parameter.requires_grad != name.startswith("features.trunk."), name


def test_copies_that_contradict_each_other_are_named(caplog):
    model = "vctree/panoptic_fpn_r50_fpn_1x_predcls_psg.py"
    state = make_state(model)
    decoder = "relation_head.context_layer.decoder_rnn."
    pairs = {
        "obj_embed.weight": "decoderLSTM.embed_layer.weight",
        "out.weight": "decoderLSTM.embed_out_layer.weight",
        "out.bias": "decoderLSTM.embed_out_layer.bias",
    }
    places = from_state_dict(state, psg_vocabulary(), path="a.pth").network.state_dict()
    assert len(caplog.messages) == len(pairs)
    for message, (first, second) in zip(caplog.messages, pairs.items(), strict=True):
        assert message.startswith(f"a.pth: {decoder}{first} and {decoder}{second} are one tensor")
        used = places[ours_of(decoder + first)]
        assert torch.equal(used, state[decoder + second])
        assert not torch.equal(used, state[decoder + first])
    caplog.clear()
    state |= {decoder + first: state[decoder + second] for first, second in pairs.items()}
    from_state_dict(state, psg_vocabulary())
    from_state_dict(make_state(IMP), psg_vocabulary())
    assert not caplog.messages


def complaints(state, vocabulary=None):
    with pytest.raises(InputError) as caught:
        from_state_dict(state, vocabulary or psg_vocabulary(), path="model.pth")
    message = str(caught.value)
    assert message.startswith("model.pth: ")
    return message.split(": ", 2)[2].split("; ")


@pytest.mark.parametrize("model", MODELS)
def test_every_wrong_tensor_is_named_and_no_other(model):
    state = make_state(model)
    chosen = random.Random(model).sample(sorted(state), 8)
    expected = set()
    for name in chosen[:4]:
        del state[name]
        expected.add(f"missing {name}")
    for name in chosen[4:]:
        shape = list(state[name].shape)
        state[name] = filled(0, name, (*shape, 3))
        expected.add(f"{name} of shape {[*shape, 3]} instead of {shape}")
    state["relation_head.freq_bias.obj_baseline.weight"] = torch.zeros(1)
    expected.add("unexpected relation_head.freq_bias.obj_baseline.weight")
    assert set(complaints(state)) == expected


@pytest.mark.parametrize("place", range(0, 427, 23))
def test_one_wrong_tensor_is_told_by_its_name(place):
    state = make_state(IMP)
    name = list(state)[place]
    shape = list(state[name].shape)
    other = [shape[0] + 2, *shape[1:]] if shape else [2]
    changed = {**state, name: filled(0, name, other)}
    assert complaints(changed) == [f"{name} of shape {other} instead of {shape}"]
    del changed[name]
    assert complaints(changed) == [f"missing {name}"]
    assert complaints({**state, f"{name}.more": torch.zeros(1)}) == [f"unexpected {name}.more"]


def test_other_widths_are_read_off_the_tensors():
    """The same model with half of the hidden width loads as what it is."""
    state = make_state(IMP)
    for name, tensor in state.items():
        if name.startswith("relation_head.context_layer."):
            shape = [{512: 256, 1536: 768}.get(side, side) for side in tensor.shape]
            if name.split(".")[2].endswith("_fc") and "_w_fc" in name and len(shape) == 2:
                shape[1] = 512  # the gates read two states
            state[name] = filled(0.0, name, shape)
    assert from_state_dict(state, psg_vocabulary()).network.config.hidden_dim == 256


def test_another_vocabulary_is_asked_for():
    small = Vocabulary(("person",), ("sky",), ("on", "in"))
    message = "; ".join(complaints(make_state(IMP), small))
    assert "relation_head.context_layer.rel_fc.bias of shape [57] instead of [3]" in message
    assert "56 predicates, the vocabulary 2: give the vocabulary" in message


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (lambda name: not name.startswith("relation_head."), "init_trunk"),
        (
            lambda name: "context_layer" not in name,
            "two-stage models (vctree, motifs, gpsnet, imp)",
        ),
    ],
)
def test_other_models_are_refused(keep, words):
    state = {name: tensor for name, tensor in make_state(IMP).items() if keep(name)}
    with pytest.raises(InputError) as caught:
        from_state_dict(state, psg_vocabulary())
    assert words in str(caught.value)


def write_checkpoint(path, model=IMP, value=1e-3):
    """As mmcv writes one; every weight the same, so that the file is small."""
    state = {
        name: filled(0 if name.endswith("tracked") else value, name, shape)
        for name, shape in LISTED[model].items()
    }
    meta = {"config": "raise SystemExit", "CLASSES": ["person"], "epoch": 12}
    torch.save({"meta": meta, "state_dict": state, "optimizer": {"state": {}}}, path)


def test_convert_writes_a_model_that_predicts(tmp_path, capsys):
    """The whole way at full size: two copies of a quarter of a gigabyte, one picture."""
    checkpoint, out = tmp_path / "epoch_12.pth", tmp_path / "model.safetensors"
    write_checkpoint(checkpoint)
    assert main(["convert", str(checkpoint), "--out", str(out), "--json"]) == 0
    streams = capsys.readouterr()
    told = json.loads(streams.out)
    assert told["set_aside"] == {"rpn_head": 6, "roi_head": 20, "semantic_head": 23}
    assert told["tensors"] == 427 - 49
    assert told["config"]["openpsg_quirks"] is True
    assert "converted imp on resnet50" in streams.err
    model = load_relation_model(out)
    assert model.vocabulary == psg_vocabulary()
    assert model.config == load_openpsg(checkpoint).network.config
    assert model.config.roi_dim == OPENPSG.roi_dim
    image = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    boxes = np.array([[0, 0, 20, 30], [10, 5, 40, 40], [3, 3, 9, 9]], np.float32)
    scene = SceneInput("a", 40, 40, np.arange(3), boxes, None, np.arange(1, 4), image)
    (answer,) = model.predict([scene])
    assert np.array_equal(answer.pairs, all_pairs(3))
    assert answer.logits.shape == (6, 56)
    assert np.isfinite(answer.logits).all()
    out.unlink()


def test_convert_refuses_before_it_writes(tmp_path, capsys):
    checkpoint = tmp_path / "epoch_12.pth"
    write_checkpoint(checkpoint)
    assert main(["convert", str(checkpoint), "--out", str(tmp_path / "model.bin")]) == 2
    assert main(["convert", str(tmp_path), "--out", str(tmp_path / "model.safetensors")]) == 2
    said = capsys.readouterr().err
    assert "ends in .safetensors" in said
    assert "CHECKPOINT expects a file, got a folder" in said
    vocabulary = tmp_path / "names.yaml"
    vocabulary.write_text("thing_classes: [a]\nstuff_classes: [b]\npredicate_classes: [on, off]\n")
    arguments = [str(checkpoint), "--out", str(tmp_path / "model.safetensors")]
    assert main(["convert", *arguments, "--vocabulary", str(vocabulary)]) == 2
    assert "the vocabulary 2: give the vocabulary" in capsys.readouterr().err
    assert not (tmp_path / "model.safetensors").exists()
