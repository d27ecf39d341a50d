from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from pipeline_campaign import Campaign

from haystack.errors import InputError
from haystack.executors import LocalExecutor
from haystack.io.panoptic_png import read_panoptic_png
from haystack.io.psg import read_psg
from haystack.io.psg_writer import mask_file
from haystack.pipeline.export import ExportLabels, export_dataset
from haystack.pipeline.jobs.export import ExportJob
from haystack.scene_graph import as_triplets


def exported(campaign: Campaign):
    return read_psg(campaign.root / "export" / "annotation.json")


def test_answers_become_a_psg_data_set_with_negatives_and_masks(finished: Campaign) -> None:
    dataset = exported(finished)
    assert [graph.image_id for graph in dataset.graphs] == ["1000", "1001", "1002", "1004", "1005"]
    first = dataset.graphs[0]
    assert first.relations.tolist() == [[0, 1, 0], [2, 0, 1]]
    assert first.neg_relations.tolist() == [[1, 0, 3], [1, 2, -1]]
    assert first.file_name == "image-00.jpg"
    assert dataset.faulty_segments == {"1001": (3,)}
    assert dataset.test_image_ids == ()
    source = finished.dataset.by_id()
    for graph in dataset.graphs:
        assert graph.segments == source[graph.image_id].segments
        mask = read_panoptic_png(dataset.path_of(graph.pan_seg_file_name))
        original = finished.dataset.path_of(source[graph.image_id].pan_seg_file_name)
        assert np.array_equal(mask, read_panoptic_png(original))


def test_images_that_lost_their_answers_lose_their_mask(campaign: Campaign) -> None:
    campaign.run()
    assert (campaign.root / "export" / "panoptic" / "1005.png").is_file()
    campaign.labelled = 2
    campaign.run("export")
    names = sorted(path.name for path in (campaign.root / "export" / "panoptic").glob("*.png"))
    assert names == ["1000.png", "1001.png"]
    assert len(exported(campaign)) == 2


def test_test_split_and_integer_ids_on_request(campaign: Campaign) -> None:
    campaign.run()
    job = ExportJob(campaign.workspace, campaign.labels, as_test_split=True, integer_ids=True)
    LocalExecutor(campaign.root, progress=False).run(job)
    content = json.loads((campaign.root / "export" / "annotation.json").read_text())
    assert content["test_image_ids"] == [1000, 1001, 1002, 1004, 1005]
    assert len(exported(campaign).split("test")) == 5


def test_answers_that_fit_no_image_any_more_are_refused(finished: Campaign) -> None:
    images = list(finished.workspace.segmented("000000"))
    vocabulary = finished.workspace.vocabulary
    with pytest.raises(InputError, match="1 answered images are not among the segmented ones"):
        export_dataset(images, {"9999": ExportLabels()}, vocabulary)
    beyond = {images[0].image_id: ExportLabels(relations=as_triplets([(0, 4, 1)]))}
    with pytest.raises(InputError, match=r"names segment 4 but the image has 4 segments"):
        export_dataset(images, beyond, vocabulary)


@pytest.mark.parametrize("image_id", ["107902", "sa_1", "a/b", "../x", "ä b", ".", "%2f_"])
def test_mask_files_stay_inside_the_export_and_apart(image_id: str) -> None:
    name = mask_file(image_id)
    assert name.startswith("panoptic/")
    assert "/" not in name.removeprefix("panoptic/")
    assert name.endswith(".png")


def test_mask_files_of_different_images_differ() -> None:
    ids = ["a/b", "a%2f_b", "a%b", "a b", "a_b"]
    assert len({mask_file(image_id) for image_id in ids}) == len(ids)


def test_rows_that_use_a_faulty_segment_are_left_out(finished: Campaign) -> None:
    image = next(finished.workspace.segmented("000000"))
    known = replace(image, faulty=(2,))
    labels = {
        image.image_id: ExportLabels(
            relations=as_triplets([(0, 1, 0), (2, 0, 1)]),
            neg_relations=as_triplets([(1, 2, -1), (1, 0, 3), (3, 0, 2)]),
            faulty=(3,),
        )
    }
    dataset = export_dataset([known], labels, finished.workspace.vocabulary)
    assert dataset.graphs[0].relations.tolist() == [[0, 1, 0]]
    assert dataset.graphs[0].neg_relations.tolist() == [[1, 0, 3]]
    assert dataset.faulty_segments == {image.image_id: (2, 3)}
