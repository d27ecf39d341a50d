from dataclasses import replace

import pytest

from haystack.errors import InputError
from haystack.io import read_psg, write_psg
from haystack.io.merge import merge_psg, relocated
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Segment, as_triplets
from haystack.vocabulary import psg_vocabulary

SEGMENTS = (Segment(1, 0, 9, (0, 0, 3, 3)), Segment(2, 17, 9, (3, 0, 6, 3)))


def graph(image_id, relations=(), negatives=(), **changes):
    return SceneGraph(
        image_id=image_id,
        height=4,
        width=6,
        file_name=f"{image_id}.jpg",
        pan_seg_file_name=f"{image_id}.png",
        segments=SEGMENTS,
        relations=as_triplets(relations),
        neg_relations=as_triplets(negatives),
        **changes,
    )


def dataset(*graphs, **changes):
    return SceneGraphDataset(psg_vocabulary(), graphs, **changes)


def test_new_images_are_appended_negatives_only_ones_included(tmp_path):
    base = dataset(graph("1", [(0, 1, 3)]), test_image_ids=("1",))
    addition = dataset(
        graph("2", negatives=[(0, 1, 26), (1, 0, -1)]),
        test_image_ids=("2",),
        faulty_segments={"2": (1,)},
    )
    merged, report = merge_psg(base, addition)
    assert [image.image_id for image in merged.graphs] == ["1", "2"]
    assert merged.test_image_ids == ("1", "2")
    assert report["new_images"] == 1
    assert report["added_negatives"] == 2
    write_psg(merged, tmp_path / "merged.json")
    again = read_psg(tmp_path / "merged.json")
    assert again.graphs[1].neg_relations.tolist() == [[0, 1, 26], [1, 0, -1]]
    assert again.faulty_segments == {"2": (1,)}


def test_rows_of_an_image_of_both_are_united_each_once():
    base = dataset(graph("1", [(0, 1, 3), (0, 1, 3)], [(0, 1, 5)]))
    addition = dataset(graph("1", [(1, 0, 3), (0, 1, 3)], [(0, 1, 5), (0, 1, 6)]))
    merged, report = merge_psg(base, addition)
    assert merged.graphs[0].relations.tolist() == [[0, 1, 3], [0, 1, 3], [1, 0, 3]]
    assert merged.graphs[0].neg_relations.tolist() == [[0, 1, 5], [0, 1, 6]]
    assert (report["merged_images"], report["added_relations"], report["added_negatives"]) == (
        1,
        1,
        1,
    )


@pytest.mark.parametrize("denial", [(0, 1, 3), (0, 1, -1)])
def test_conflicts_are_refused_or_decided(denial):
    base = dataset(graph("1", [(0, 1, 3), (1, 0, 4)]))
    addition = dataset(graph("1", [(1, 0, 5)], [denial, (1, 0, 7)]))
    with pytest.raises(
        InputError, match=r"image 1: .* person 'on' horse \[0, 1, 3\] is yes in the base and .*no"
    ):
        merge_psg(base, addition)
    kept, report = merge_psg(base, addition, on_conflict="base")
    assert kept.graphs[0].relations.tolist() == [[0, 1, 3], [1, 0, 4], [1, 0, 5]]
    assert kept.graphs[0].neg_relations.tolist() == [[1, 0, 7]]
    assert report["conflicting"] == {"1": [[0, 1, 3]]}
    replaced, _ = merge_psg(base, addition, on_conflict="addition")
    assert replaced.graphs[0].relations.tolist() == [[1, 0, 4], [1, 0, 5]]
    assert list(denial) in replaced.graphs[0].neg_relations.tolist()


def test_one_id_for_two_images_is_refused_unless_prefixed():
    base = dataset(graph("1", [(0, 1, 3)]))
    other = dataset(replace(graph("1", [(0, 1, 4)]), height=5), faulty_segments={"1": (0,)})
    with pytest.raises(InputError, match="--prefix-ids"):
        merge_psg(base, other)
    merged, _ = merge_psg(
        base, other, prefix_ids="sa-", prefix_images="sa1b/", prefix_masks="masks/"
    )
    assert [image.image_id for image in merged.graphs] == ["1", "sa-1"]
    assert merged.graphs[1].file_name == "sa1b/1.jpg"
    assert merged.graphs[1].pan_seg_file_name == "masks/1.png"
    assert merged.faulty_segments == {"sa-1": (0,)}


def test_other_vocabularies_are_refused():
    vocabulary = replace(psg_vocabulary(), predicate_classes=("over", "below"))
    with pytest.raises(InputError, match="number 1 is 'in front of' and 'below'; only equal"):
        merge_psg(dataset(), SceneGraphDataset(vocabulary, ()))


def test_text_and_integer_ids_meet(tmp_path):
    write_psg(dataset(graph("7", [(0, 1, 3)])), tmp_path / "text.json")
    write_psg(dataset(graph("7", [(0, 1, 4)])), tmp_path / "integer.json", integer_ids=True)
    merged, report = merge_psg(
        read_psg(tmp_path / "text.json"), read_psg(tmp_path / "integer.json")
    )
    assert len(merged) == 1
    assert report["merged_images"] == 1


def test_names_that_lead_to_a_file_follow_a_move_and_others_stay(tmp_path):
    (tmp_path / "a" / "masks").mkdir(parents=True)
    (tmp_path / "a" / "masks" / "1.png").touch()
    there = replace(graph("1"), pan_seg_file_name="masks/1.png", file_name="train2017/1.jpg")
    moved = relocated(dataset(there, root=tmp_path / "a"), tmp_path / "b" / "c")
    assert moved.graphs[0].pan_seg_file_name == "../../a/masks/1.png"
    assert moved.graphs[0].file_name == "train2017/1.jpg"
    assert moved.path_of(moved.graphs[0].pan_seg_file_name).resolve().name == "1.png"
    assert relocated(moved, tmp_path / "d", masks=False).graphs[0].pan_seg_file_name == (
        "../../a/masks/1.png"
    )


def test_the_base_decides_the_split_of_its_images():
    base = dataset(graph("1"), graph("2"), test_image_ids=("2",))
    addition = dataset(graph("1"), graph("2"), graph("3"), test_image_ids=("1", "2", "3"))
    merged, report = merge_psg(base, addition)
    assert merged.test_image_ids == ("2", "3")
    assert report["kept_in_training"] == 1
