"""Category ids, contiguous ids, names: three ways to the vocabulary's classes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from haystack.errors import InputError
from haystack.io.class_numbers import of_category_ids, of_contiguous_ids, of_names
from haystack.vocabulary import PSG_COCO_CATEGORY_IDS, Vocabulary, psg_vocabulary

PSG = psg_vocabulary()
TURNED = replace(PSG, stuff_classes=PSG.stuff_classes[::-1])


def test_psgs_order_is_that_of_models():
    assert of_contiguous_ids(PSG) == {number: number for number in range(133)}
    assert of_contiguous_ids(PSG, things_only=True) == {number: number for number in range(80)}


def test_cocos_gaps():
    classes = of_category_ids(PSG)
    assert set(classes) == set(PSG_COCO_CATEGORY_IDS)
    named = {number: PSG.object_classes[place] for number, place in classes.items()}
    # from COCO's own table of categories
    known = {1: "person", 13: "stop sign", 90: "toothbrush", 92: "banner", 149: "road"}
    known |= {187: "sky-other-merged", 200: "rug-merged"}
    assert {number: named[number] for number in known} == known


def test_vocabularies_in_another_order_are_matched_by_name():
    assert of_contiguous_ids(TURNED)[132] == 80
    assert of_category_ids(TURNED)[200] == 80
    names = dict(enumerate(PSG.object_classes))
    assert of_names(names, TURNED) == of_contiguous_ids(TURNED)


def test_detectron2s_short_names_and_models_without_names():
    assert of_names({1: "tree", 2: "sky ", 0: "N/A", 3: "wall-wood"}, PSG) == {
        1: PSG.object_index("tree-merged"),
        2: PSG.object_index("sky-other-merged"),
        3: PSG.object_index("wall-wood"),
    }
    own = Vocabulary(("dog",), ("tree", "tree-merged"), ("on",))
    assert of_names({0: "tree"}, own) == {0: 1}, "an exact name comes first"
    nameless = {number: f"LABEL_{number}" for number in range(133)}
    assert of_names(nameless, TURNED) == of_contiguous_ids(TURNED)
    with pytest.raises(InputError, match="does not name its 150 classes"):
        of_names({number: f"LABEL_{number}" for number in range(150)}, PSG)


def test_classes_that_the_vocabulary_lacks_are_named():
    with pytest.raises(InputError, match=r"classes 'wall', 'abyss' are not among"):
        of_names({0: "person", 1: "wall", 2: "abyss"}, Vocabulary(("person",), ("sky",), ("on",)))
    with pytest.raises(InputError, match=r"'banner', .* and 48 more are not among"):
        of_contiguous_ids(replace(PSG, stuff_classes=()))
    assert len(of_contiguous_ids(replace(PSG, stuff_classes=()), things_only=True)) == 80
