"""Models by name: files, and classes of one's own with their checks."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from haystack.errors import InputError
from haystack.models.relation.answers import ask
from haystack.models.relation.files import save_relation_model
from haystack.models.relation.frequency import FrequencyModel
from haystack.models.relation.inputs import RelationLogits, SceneInput, all_pairs
from haystack.models.relation.overlap import OverlapFilter
from haystack.models.relation.references import (
    ModelReference,
    absolute_reference,
    vocabulary_of,
)
from haystack.scene_graph import PredictedObjects
from haystack.vocabulary import Vocabulary, psg_vocabulary

VOCABULARY = Vocabulary(("person", "dog"), (), ("on", "beside"))
GOOD = """
class Model:
    reads_images = False
    def __init__(self, vocabulary):
        self.num_predicates = vocabulary.num_predicates
    def predict(self, scenes):
        return []
def make(vocabulary):
    return Model(vocabulary)
"""


@pytest.fixture(autouse=True)
def clean_imports():
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path
    importlib.invalidate_caches()


def plugin(tmp_path, source, name="own_model.py"):
    (tmp_path / name).write_text(source)
    importlib.invalidate_caches()
    return tmp_path / name


@pytest.mark.parametrize("factory", ["Model", "make"])
def test_a_class_or_function_of_a_file(tmp_path, factory):
    file = plugin(tmp_path, GOOD)
    model, vocabulary = ModelReference.parse(f"{file}:{factory}").load(VOCABULARY)
    assert model.num_predicates == 2
    assert vocabulary is VOCABULARY
    model, vocabulary = ModelReference.parse(f"{file}:{factory}").load()
    assert vocabulary is psg_vocabulary()
    assert model.num_predicates == 56


def test_a_module_in_the_current_folder(tmp_path, monkeypatch):
    package = tmp_path / "their_package"
    package.mkdir()
    (package / "__init__.py").touch()
    plugin(package, GOOD, "models.py")
    monkeypatch.chdir(tmp_path)
    reference = ModelReference.parse("their_package.models:make")
    assert reference.load(VOCABULARY)[0].num_predicates == 2
    assert str(reference) == "their_package.models:make"
    with pytest.raises(InputError, match="cannot import the module 'no_such_package'"):
        ModelReference.parse("no_such_package:Model").load(VOCABULARY)


def test_a_file_may_import_its_neighbours(tmp_path):
    plugin(tmp_path, GOOD, "a_neighbour.py")
    file = plugin(tmp_path, "from a_neighbour import Model")
    assert ModelReference.parse(f"{file}:Model").load(VOCABULARY)[0].num_predicates == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("    reads_images = False\n", ""), "needs the attribute 'reads_images'"),
        (("reads_images = False", "reads_images = 'no'"), "reads_images to be true or false"),
        (("= vocabulary.num_predicates", "= 2.0"), "num_predicates to be an integer, got 2.0"),
        (("= vocabulary.num_predicates", "= 7"), "the model has 7 predicates"),
        (("def predict", "def prediction"), r"needs the method predict\(scenes\)"),
        (("(self, vocabulary)", "(self)"), "callable with the vocabulary as its only argument"),
        (("class Model:", "class Modell:"), "has no 'Model'; nearest: Modell"),
        (("class Model:", "Model = 3\nclass Other:"), "a class or a function.*got int"),
        (
            ("class Model:", "import no_such_module\nclass Model:"),
            "cannot import it: ModuleNotFound",
        ),
        (("class Model:", "class Model"), "cannot import it"),
    ],
)
def test_what_a_class_lacks_is_said_in_a_sentence(tmp_path, change, words):
    file = plugin(tmp_path, GOOD.replace(*change))
    with pytest.raises(InputError, match=words) as caught:
        ModelReference.parse(f"{file}:Model").load(VOCABULARY)
    assert "own_model.py" in str(caught.value)


def test_an_error_inside_the_class_is_named_and_kept(tmp_path):
    file = plugin(tmp_path, GOOD.replace("self.num_predicates", "1 / 0; self.num_predicates"))
    with pytest.raises(InputError, match=r"own_model\.py:Model: making .* ZeroDivis") as caught:
        ModelReference.parse(f"{file}:Model").load(VOCABULARY)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    file = plugin(tmp_path, "1 / 0", "broken.py")
    with pytest.raises(InputError, match=r"broken\.py: cannot import it: ZeroDivisionError"):
        ModelReference.parse(f"{file}:Model").load(VOCABULARY)


def test_fingerprints_follow_source_version_and_name(tmp_path):
    seen = set()
    for number, source in enumerate((GOOD, GOOD + "\n# other", GOOD + "\nModel.version = 2")):
        file = plugin(tmp_path, source, f"own_{number}.py")
        for factory in ("Model", "make"):
            reference = ModelReference.parse(f"{file}:{factory}")
            assert reference.fingerprint() == reference.fingerprint()
            seen.add(reference.fingerprint())
    assert len(seen) == 6


def test_weights_of_training_go_into_ones_own_module(tmp_path):
    torch.manual_seed(0)
    source = """
from torch import nn
class Model(nn.Module):
    reads_images = False
    def __init__(self, vocabulary):
        super().__init__()
        self.num_predicates = vocabulary.num_predicates
        self.layer = nn.Linear(2, 3)
    def predict(self, scenes):
        return []
"""
    file = plugin(tmp_path, source + GOOD.replace("class Model", "class Plain"))
    weights = {"layer.weight": torch.ones(3, 2), "layer.bias": torch.zeros(3)}
    (tmp_path / "run").mkdir()
    save_file(weights, tmp_path / "run" / "model.safetensors")
    for run in ("run", "run/model.safetensors"):
        reference = ModelReference.parse(f"{file}:Model@{tmp_path / run}")
        model, _ = reference.load(VOCABULARY)
        assert torch.equal(model.layer.weight, weights["layer.weight"])
        assert not model.training
    without = ModelReference.parse(f"{file}:Model").fingerprint()
    first = reference.fingerprint()
    weights["layer.bias"] += 1
    save_file(weights, tmp_path / "run" / "model.safetensors")
    assert len({without, first, reference.fingerprint()}) == 3
    with pytest.raises(InputError, match=r"torch\.nn\.Module, and Plain is none"):
        ModelReference.parse(f"{file}:Plain@{tmp_path / 'run'}").load(VOCABULARY)
    save_file({"layer.bias": torch.zeros(3)}, tmp_path / "run" / "model.safetensors")
    with pytest.raises(InputError, match=r"missing layer\.weight"):
        reference.load(VOCABULARY)
    with pytest.raises(InputError, match="no such relation model"):
        ModelReference.parse(f"{file}:Model@{tmp_path / 'none'}")


def test_files_and_folders_of_training(tmp_path):
    counts = np.zeros((2, 2, 3), np.int32)
    model = OverlapFilter(FrequencyModel(counts, VOCABULARY))
    save_relation_model(model, tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        reference = ModelReference.parse(path)
        loaded, vocabulary = reference.load()
        assert vocabulary == VOCABULARY == vocabulary_of(loaded)
        assert len(reference.fingerprint()) == 64
    with pytest.raises(InputError, match="in the model and the annotations, got 2 and 56"):
        reference.load(psg_vocabulary())
    other = Vocabulary(("person", "dog"), (), ("beside", "on"))
    with pytest.raises(InputError, match="number 0 is 'on' and 'beside'; use a model"):
        reference.load(other)
    more = Vocabulary(("person", "dog", "cat"), (), ("on", "beside"))
    with pytest.raises(InputError, match="object classes in the model and the ann"):
        reference.load(more)
    with pytest.raises(InputError, match="no such relation model; make one with"):
        ModelReference.parse(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match="no such Python file"):
        ModelReference.parse("absent.py:Model")


def test_absolute_references(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute_reference("package.module:factory") == "package.module:factory"
    assert absolute_reference("own.py:Model") == f"{tmp_path}/own.py:Model"
    assert absolute_reference("own.py:Model@run") == f"{tmp_path}/own.py:Model@{tmp_path}/run"
    assert absolute_reference("a.b:make@run") == f"a.b:make@{tmp_path}/run"
    assert absolute_reference("model.safetensors") == f"{tmp_path}/model.safetensors"


class Answering:
    reads_images = False
    num_predicates = 2

    def __init__(self, answers):
        self.answers = answers

    def predict(self, scenes):
        return self.answers


def scene(count=2):
    boxes = np.zeros((count, 4), np.float32)
    return SceneInput("a", 4, 4, np.zeros(count, np.int64), boxes, None, np.arange(1, count + 1))


def answer(logits=((0, 0), (0, 0)), none=(0, 0), pairs=((0, 1), (1, 0)), image_id="a"):
    none = None if none is None else np.array(none, np.float32)
    return RelationLogits(image_id, np.array(pairs), np.array(logits, np.float32), none)


def test_good_answers_pass():
    assert ask(Answering([answer()]), [scene()])[0].logits.dtype == np.float32
    assert ask(Answering([answer(none=None)]), [scene()])[0].no_relation is None
    classified = replace(answer(), objects=PredictedObjects(np.array([1, 0])))
    assert ask(Answering([classified]), [scene()])[0].objects is classified.objects
    for count in (0, 1):
        empty = RelationLogits("a", all_pairs(count), np.empty((0, 2)), np.empty(0))
        assert len(ask(Answering([empty]), [scene(count)])[0].pairs) == 0


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([], "one RelationLogits a scene; given 1, it returned a list of 0"),
        (None, "one RelationLogits a scene; given 1, it returned None$"),
        ({}, "given 1, it returned an object of dict$"),
        ([3], "image a: the relation model must answer with RelationLogits, it gave int"),
        ([answer(image_id="b")], "image a: the relation model answered for 'b'"),
        ([answer(pairs=((0, 1), (0, 1)))], "each of the 2 ordered pairs of 2 segments once"),
        ([answer(logits=((0, 0, 0), (0, 0, 0)))], r"logits of shape \[2, 2\], it gave \[2, 3\]"),
        (
            [replace(answer(), objects=PredictedObjects(np.zeros(3, np.int64)))],
            "classified 3 objects of 2",
        ),
        ([answer(none=(0,))], r"no_relation of shape \[2\], it gave \[1\]"),
        ([answer(logits=((0, np.nan), (0, 0)))], "logits that are NaN or infinite"),
        ([answer(none=(np.inf, 0))], "no_relation that are NaN or infinite"),
    ],
)
def test_wrong_answers_are_said_in_a_sentence(answers, words):
    with pytest.raises(InputError, match=words) as caught:
        ask(Answering(answers), [scene()])
    assert str(caught.value).startswith(f"{__file__}:Answering")


class Raising(Answering):
    def predict(self, scenes):
        raise self.answers


def test_who_failed_is_said():
    with pytest.raises(InputError, match=r":Raising: the model's predict\(\) raised KeyError: 'x'"):
        ask(Raising(KeyError("x")), [scene()])
    with pytest.raises(InputError, match=r"^own words$"):
        ask(Raising(InputError("own words")), [scene()])
    # What smaller batches may mend is left to those who can make them.
    for error in (MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate")):
        with pytest.raises(type(error)):
            ask(Raising(error), [scene()])
    with pytest.raises(InputError, match=r"logits as a NumPy array, it gave list"):
        ask(Answering([replace(answer(), logits=[[0], [0, 1]])]), [scene()])
    # A filter passes on who it was.
    with pytest.raises(InputError, match=r":Answering, image a: .* NaN"):
        ask(OverlapFilter(Answering([answer(none=(np.nan, 0))])), [scene()])
