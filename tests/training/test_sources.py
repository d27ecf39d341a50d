"""Which images a run learns from: splits, mixing, and those held out."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from haystack.errors import InputError
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Segment, as_triplets
from haystack.training.config import TrainConfig
from haystack.training.sources import collect_images, read_annotations
from haystack.vocabulary import Vocabulary

VOCABULARY = Vocabulary(("cat", "dog"), ("sky",), ("on", "beside"))


def graph(image_id, relations=((0, 1, 0),), negatives=(), count=3):
    segments = tuple(Segment(i + 1, 0, 9, (0, 0, 3, 3)) for i in range(count))
    return SceneGraph(
        image_id,
        9,
        9,
        f"{image_id}.jpg",
        segments=segments,
        relations=as_triplets(relations),
        neg_relations=as_triplets(negatives),
    )


def dataset(ids, test=(), root=None, **kwargs):
    return SceneGraphDataset(VOCABULARY, tuple(graph(i, **kwargs) for i in ids), tuple(test), root)


def ids(group):
    return [image.graph.image_id for image in group]


def test_one_file_is_one_group():
    made = collect_images(TrainConfig(), [dataset("abcd", test="d")])
    assert [ids(group) for group in made.groups] == [["a", "b", "c"]]
    assert made.shares(0.3) == (1,)
    everything = collect_images(TrainConfig(split="all"), [dataset("abcd", test="d")])
    assert ids(everything.training) == ["a", "b", "c", "d"]


def test_mixed_in_images_are_a_group_of_their_own_with_a_share(tmp_path):
    psg, export = dataset("abc", root=tmp_path / "psg"), dataset("xy", root=tmp_path / "export")
    made = collect_images(TrainConfig(mix=["export"]), [psg, export])
    assert [ids(group) for group in made.groups] == [["a", "b", "c"], ["x", "y"]]
    assert made.shares(None) == (Fraction(3, 5), Fraction(2, 5))
    assert made.shares(0.25) == (Fraction(3, 4), Fraction(1, 4))
    roots = [image.dataset.root.name for image in made.training]
    assert roots == ["psg", "psg", "psg", "export", "export"]


def test_an_image_of_both_has_all_labels_and_belongs_to_the_first():
    export = dataset("bx", relations=((1, 0, 1),), negatives=((2, 0, 0),))
    made = collect_images(TrainConfig(mix=["export"]), [dataset("ab"), export])
    assert [ids(group) for group in made.groups] == [["a", "b"], ["x"]]
    both = made.groups[0][1].graph
    assert both.relations.tolist() == [[0, 1, 0], [1, 0, 1]]
    assert both.neg_relations.tolist() == [[2, 0, 0]]


def test_a_share_without_effect_is_said(caplog):
    config = TrainConfig(mix=["export"], mix_share=0.3)
    collect_images(config, [dataset("abc"), dataset("cx")])
    collect_images(replace(config, mix_share=None), [dataset("abc"), dataset("bc")])
    collect_images(replace(config, mix=[]), [dataset("abc")])
    assert not caplog.messages
    made = collect_images(config, [dataset("abc"), dataset("bc", relations=((1, 0, 1),))])
    assert made.shares(0.3) == (1,)
    assert "mix_share=0.3 has no effect: every image to learn from is one of annotations" in (
        caplog.text
    )


def test_no_file_brings_in_another_ones_test_images():
    psg, export = dataset("abt", test="t"), dataset("tuxa", test="u")
    made = collect_images(TrainConfig(mix=["export"]), [psg, export])
    assert [ids(group) for group in made.groups] == [["a", "b"], ["x"]]
    # An answered photograph of the training set that the export wants to test on is no test image
    # for nothing: it is left out as well.
    made = collect_images(TrainConfig(mix=["export"]), [psg, dataset("abx", test="b")])
    assert ids(made.training) == ["a", "x"]


def test_contradictions_and_other_vocabularies_are_refused_by_name():
    config = TrainConfig(annotations="psg.json", mix=["export"])
    denied = dataset("a", relations=(), negatives=((0, 1, 0),))
    with pytest.raises(InputError, match=r"export: cannot be mixed with psg\.json: .*contradict"):
        collect_images(config, [dataset("a"), denied])
    other = replace(dataset("x"), vocabulary=Vocabulary(("cat", "dog"), ("sky",), ("on", "near")))
    with pytest.raises(InputError, match=r"same predicates in the base and the addition"):
        collect_images(config, [dataset("a"), other])


def test_on_conflict_says_what_holds_where_files_contradict_each_other():
    files = [dataset("ab"), dataset("a", relations=(), negatives=((0, 1, 0),))]
    before = files[0].graphs[0].relations.tolist()
    assert before
    for winner, (relations, negatives) in {
        "base": (before, []),
        "addition": ([row for row in before if row != [0, 1, 0]], [[0, 1, 0]]),
    }.items():
        made = collect_images(TrainConfig(mix=["export"], on_conflict=winner), files)
        (graph,) = (image.graph for image in made.training if image.graph.image_id == "a")
        assert graph.relations.tolist() == relations
        assert graph.neg_relations.tolist() == negatives
        assert made.conflicts == 1
    assert collect_images(TrainConfig(), files[:1]).conflicts == 0


def test_the_images_held_out_stay_the_same_when_others_join():
    config = TrainConfig(validation_fraction=0.3)
    few = collect_images(config, [dataset([f"i{n}" for n in range(100)])])
    many = collect_images(config, [dataset([f"i{n}" for n in range(400)])])
    assert set(ids(few.held_out)) == {i for i in ids(many.held_out) if int(i[1:]) < 100}
    assert 85 < len(many.held_out) < 155
    assert not set(ids(many.held_out)) & set(ids(many.training))
    assert len(many.held_out) + len(many.training) == 400
    other = collect_images(
        replace(config, validation_seed=1), [dataset([f"i{n}" for n in range(100)])]
    )
    assert set(ids(other.held_out)) != set(ids(few.held_out))
    reseeded = collect_images(replace(config, seed=5), [dataset([f"i{n}" for n in range(100)])])
    assert ids(reseeded.held_out) == ids(few.held_out)


def test_a_fraction_that_holds_out_nothing_is_refused():
    with pytest.raises(InputError, match=r"of 1 images holds out"):
        collect_images(TrainConfig(validation_fraction=0.5), [dataset("a")])


def test_the_fingerprint_sees_labels_and_roles():
    base = collect_images(TrainConfig(), [dataset("ab")]).fingerprint()
    assert base == collect_images(TrainConfig(), [dataset("ab")]).fingerprint()
    for changed in (dataset("ba"), dataset("ab", negatives=((1, 0, -1),)), dataset("ab", count=4)):
        assert collect_images(TrainConfig(), [changed]).fingerprint() != base
    mixed = collect_images(TrainConfig(mix=["x"]), [dataset("a"), dataset("b")])
    assert mixed.fingerprint() != base


def test_a_folder_stands_for_the_annotations_in_it(dataset):
    folder = str(dataset.root)
    config = TrainConfig(annotations=folder)
    assert [len(found) for found in read_annotations(config)] == [20]
    for again in (folder, f"{folder}/annotation.json"):
        with pytest.raises(InputError, match="are in use already, as annotations"):
            read_annotations(replace(config, mix=[again]))
    config = TrainConfig(mix=[folder, f"{folder}/../{dataset.root.name}"])
    with pytest.raises(InputError, match="are in use already, as mix"):
        read_annotations(config)
