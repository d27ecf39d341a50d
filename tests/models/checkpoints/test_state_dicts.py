"""Files with tensors in them, from people whom nobody knows."""

from __future__ import annotations

import collections
import pickle
import re
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from haystack.errors import InputError
from haystack.models.checkpoints.state_dicts import differences, read_state_dict

WEIGHTS = {"a.weight": torch.arange(6.0).view(2, 3), "a.bias": torch.ones(2)}


@pytest.mark.parametrize(
    "content",
    [
        WEIGHTS,
        collections.OrderedDict(WEIGHTS),
        {"model": WEIGHTS, "epoch": 3},
        {
            "meta": {"config": "import os\nos.abort()", "epoch": 12},
            "state_dict": WEIGHTS,
            "optimizer": {"state": {0: {"momentum_buffer": torch.zeros(3)}}, "param_groups": []},
        },
        {"state_dict": {f"module.{name}": tensor for name, tensor in WEIGHTS.items()}},
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_containers_are_opened(tmp_path, content, zipped):
    path = tmp_path / "model.pth"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    tensors = read_state_dict(path)
    assert list(tensors) == list(WEIGHTS)
    assert all(torch.equal(tensor, WEIGHTS[name]) for name, tensor in tensors.items())


def test_safetensors_are_read(tmp_path):
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    assert set(read_state_dict(tmp_path / "model.safetensors")) == set(WEIGHTS)


def test_a_prefix_that_only_some_names_have_is_part_of_them(tmp_path):
    torch.save({"module.a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "model.pth")
    assert set(read_state_dict(tmp_path / "model.pth")) == {"module.a", "b"}


class Trap:
    """Runs when it is unpickled."""

    def __reduce__(self):
        return exec, ("raise SystemExit('executed')",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"state_dict": WEIGHTS, "meta": Trap()}, "which is more than tensors and plain values"),
        ({"state_dict": {}}, "got an empty one"),
        ([1, 2], "under state_dict or model, got list"),
        ({"a.weight": torch.ones(1), "epoch": 3}, "no tensors: epoch"),
    ],
)
def test_other_content_is_refused_and_never_run(tmp_path, content, words):
    path = tmp_path / "model.pth"
    torch.save(content, path)
    with pytest.raises(InputError, match=r"model\.pth") as caught:
        read_state_dict(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["model.pth", "model.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"no model", b"PK\x03\x04 broken"])
def test_broken_and_missing_files_are_refused(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=r"cannot read the checkpoint: \w"):
        read_state_dict(tmp_path / name)


@pytest.mark.parametrize(
    "content",
    [b"import os\n", b"i am no checkpoint", b"<html>", pickle.dumps({"a": 1}, protocol=4)],
)
def test_what_is_no_checkpoint_is_told_in_words_of_ours(tmp_path, content, recwarn):
    (tmp_path / "model.pth").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_state_dict(tmp_path / "model.pth")
    expected = r"expected a file of PyTorch \(.*\) or \.safetensors|got entries that are no tensors"
    assert re.search(expected, str(caught.value))
    assert not recwarn.list


def test_a_script_is_refused_without_advice_to_run_it(tmp_path, recwarn):
    with zipfile.ZipFile(tmp_path / "model.pth", "w") as archive:
        for name, content in (("constants.pkl", b"x"), ("version", b"3"), ("data.pkl", b"x")):
            archive.writestr(f"model/{name}", content)
    with pytest.raises(InputError, match="TorchScript archive, which holds code"):
        read_state_dict(tmp_path / "model.pth")
    assert not recwarn.list


def test_a_cut_file_is_refused(tmp_path):
    path = tmp_path / "model.pth"
    torch.save(WEIGHTS, path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match="cannot read the checkpoint"):
        read_state_dict(path)


def test_differences_are_named_one_by_one():
    came = {"a": torch.zeros(2), "b": torch.zeros(3, 1), "c": torch.zeros(())}
    assert differences({"a": (2,), "b": (3,), "d": ()}, came) == [
        "missing d",
        "unexpected c",
        "b of shape [3, 1] instead of [3]",
    ]
