import json
from dataclasses import replace

import pytest

from haystack.errors import InputError
from haystack.io import find_annotations
from haystack.vocabulary import PSG_COCO_CATEGORY_IDS, Vocabulary, psg_vocabulary


def test_psg_has_its_classes_in_order():
    vocabulary = psg_vocabulary()
    assert (vocabulary.num_objects, vocabulary.num_predicates) == (133, 56)
    assert vocabulary.object_classes[125] == "grass-merged"
    assert vocabulary.predicate_classes[26] == "eating"
    assert vocabulary.is_thing(79)
    assert not vocabulary.is_thing(80)
    content = json.loads(find_annotations("psg-mini").read_text())
    assert vocabulary == Vocabulary.from_dict(content)
    assert len(PSG_COCO_CATEGORY_IDS) == 133
    assert list(PSG_COCO_CATEGORY_IDS[:80]) == sorted(PSG_COCO_CATEGORY_IDS[:80])


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_any_vocabulary_is_read_from_a_file(tmp_path, suffix):
    content = {
        "thing_classes": ["cat"],
        "stuff_classes": ["sofa"],
        "predicate_classes": ["on"],
        "annotator_names": {"on": "resting on"},
    }
    path = tmp_path / f"vocabulary{suffix}"
    path.write_text(json.dumps(content))  # JSON is YAML as well
    vocabulary = Vocabulary.from_file(path)
    assert vocabulary.object_classes == ("cat", "sofa")
    assert vocabulary.annotator_name(0) == "resting on"
    assert vocabulary.to_dict() == content


def test_unknown_names_suggest_near_ones():
    with pytest.raises(InputError, match=r"unknown predicate 'siting on'; nearest: sitting on"):
        psg_vocabulary().predicate_index("siting on")
    with pytest.raises(InputError, match="unknown object class 'persn'"):
        psg_vocabulary().object_index("persn")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "object with class lists"),
        ("{", "not valid JSON"),
        ('{"thing_classes": []}', "missing: stuff_classes, predicate_classes"),
        ('{"thing_classes": "a", "stuff_classes": [], "predicate_classes": []}', "list of names"),
        ('{"thing_classes": ["a"], "stuff_classes": ["a"], "predicate_classes": []}', "twice"),
        ('{"thing_classes": [""], "stuff_classes": [], "predicate_classes": []}', "non-empty"),
        (
            '{"thing_classes": [], "stuff_classes": [], "predicate_classes": ["on"],'
            ' "annotator_names": {"under": "x"}}',
            "unknown predicate 'under'",
        ),
    ],
)
def test_bad_vocabularies_get_one_sentence(tmp_path, content, message):
    path = tmp_path / "vocabulary.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        Vocabulary.from_file(path)
    assert str(path) in str(caught.value)


def test_stray_blanks_around_names_are_dropped():
    content = {"thing_classes": [" truck"], "stuff_classes": [], "predicate_classes": ["on "]}
    vocabulary = Vocabulary.from_dict(content)
    assert vocabulary.object_classes == ("truck",)
    assert vocabulary.predicate_classes == ("on",)


def test_another_numbering_is_told_apart():
    ours = Vocabulary(("cat", "dog"), ("sky",), ("on", "in"))
    words = {"own": "the model", "others": "the file", "advice": "choose another"}
    ours.require_same(replace(ours, annotator_names={"on": "upon"}), **words)
    with pytest.raises(InputError, match="got 2 and 2 of them, number 0 is 'on' and 'in'; choose"):
        ours.require_same(replace(ours, predicate_classes=("in", "on")), **words)
    with pytest.raises(InputError, match=r"x\.json: expected the same object classes"):
        ours.require_same(replace(ours, stuff_classes=("sky", "sea")), path="x.json", **words)
