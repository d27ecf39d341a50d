"""Known examples of predicates, and pictures of a pair."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pipeline_campaign import VOCABULARY, Campaign

from haystack.errors import InputError
from haystack.io.panoptic_png import write_panoptic_png
from haystack.pipeline.examples import Affirmed, Examples, candidates
from haystack.pipeline.pair_picture import draw_pair
from haystack.scene_graph import SceneGraph, SceneGraphDataset, Segment, as_triplets

BLUE, ORANGE = (86, 180, 233), (230, 159, 0)
HOLDING, CHASING, OVER, KISSING = range(4)


# ---------------------------------------------------------------- pictures of a pair


def photograph(width: int, height: int, orientation: int = 1) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stream = io.BytesIO()
    Image.new("RGB", (width, height), (90, 90, 90)).save(stream, "PNG", exif=exif)
    return stream.getvalue()


def id_map(width: int, height: int, **boxes: tuple[int, int, int, int]) -> np.ndarray:
    ids = np.zeros((height, width), dtype=np.int32)
    for name, (left, top, right, bottom) in boxes.items():
        ids[top:bottom, left:right] = int(name[1:])
    return ids


def where(content: bytes, colour: tuple[int, int, int]) -> tuple[float, float]:
    """Middle of what has nearly this colour, as shares of width and height."""
    pixels = np.asarray(Image.open(io.BytesIO(content))).astype(int)
    rows, columns = np.nonzero(np.abs(pixels - colour).max(axis=2) < 40)
    assert len(rows) > 20
    return columns.mean() / pixels.shape[1], rows.mean() / pixels.shape[0]


def test_subject_and_object_are_outlined_in_their_colours() -> None:
    ids = id_map(400, 300, s7=(40, 40, 160, 260), s900=(240, 60, 360, 250))
    content = draw_pair(photograph(400, 300), ids, (7, 900))
    picture = Image.open(io.BytesIO(content))
    assert (picture.format, picture.size) == ("JPEG", (640, 480))
    assert where(content, BLUE) == pytest.approx((0.25, 0.5), abs=0.03)
    assert where(content, ORANGE) == pytest.approx((0.75, 0.51), abs=0.03)
    turned = draw_pair(photograph(400, 300), ids, (900, 7))
    assert where(turned, ORANGE) == pytest.approx((0.25, 0.5), abs=0.03)


def test_the_picture_and_its_outlines_are_turned_upright_together() -> None:
    ids = id_map(400, 300, s1=(40, 40, 160, 260), s2=(240, 60, 360, 250))
    content = draw_pair(photograph(400, 300, orientation=6), ids, (1, 2))
    assert Image.open(io.BytesIO(content)).size == (480, 640)
    assert where(content, BLUE) == pytest.approx((0.5, 0.25), abs=0.03)


def test_a_small_pair_is_shown_large_with_what_is_around_it() -> None:
    ids = id_map(2000, 1500, s1=(1000, 700, 1040, 780), s2=(1050, 700, 1090, 780))
    content = draw_pair(photograph(2000, 1500), ids, (1, 2), side=600)
    assert Image.open(io.BytesIO(content)).size == (600, 600)  # 800 pixels of the original
    assert where(content, BLUE)[0] == pytest.approx(0.5 - 25 / 800, abs=0.02)
    # At a corner as well, where there is nothing around it on two sides.
    ids = id_map(2000, 1500, s1=(0, 0, 40, 80), s2=(1960, 1420, 2000, 1500))
    assert Image.open(io.BytesIO(draw_pair(photograph(2000, 1500), ids, (1, 2)))).size == (640, 480)


def test_a_segment_of_one_pixel_is_not_lost() -> None:
    ids = id_map(3000, 2000, s1=(10, 10, 11, 11), s2=(2500, 1500, 2990, 1990))
    assert where(draw_pair(photograph(3000, 2000), ids, (1, 2)), BLUE)[0] < 0.05


def test_what_cannot_be_drawn_is_a_sentence() -> None:
    ids = id_map(40, 30, s1=(0, 0, 10, 10), s2=(20, 0, 30, 10))
    with pytest.raises(InputError, match=r"x\.jpg: expected a picture of 40x30 .* got 41x30"):
        draw_pair(photograph(41, 30), ids, (1, 2), path="x.jpg")
    with pytest.raises(InputError, match="segment 5 has no pixel"):
        draw_pair(photograph(40, 30), ids, (1, 5))
    with pytest.raises(InputError, match="broken or truncated"):
        draw_pair(photograph(40, 30)[:50], ids, (1, 2))


# ---------------------------------------------------------------- which pairs


def graph(number: int, rows: list[tuple[int, int, int]], areas: tuple[int, ...] = (50, 50, 50)):
    segments = tuple(Segment(i + 1, i, area, (0, 0, 5, 5)) for i, area in enumerate(areas))
    return SceneGraph(
        str(number), 20, 20, f"{number}.jpg", f"{number}.png", segments, as_triplets(rows)
    )


def test_pairs_with_one_predicate_and_of_large_segments_come_first() -> None:
    graphs = (
        graph(0, [(0, 1, HOLDING), (0, 1, CHASING)]),
        graph(1, [(0, 1, HOLDING)], areas=(50, 1, 50)),
        graph(2, [(0, 1, HOLDING), (0, 1, HOLDING), (1, 0, OVER)]),
        graph(3, [(0, 1, HOLDING)]),
        graph(4, [(0, 0, HOLDING)]),
        replace(graph(5, [(0, 1, HOLDING)]), pan_seg_file_name=None),
    )
    dataset = SceneGraphDataset(VOCABULARY, graphs, faulty_segments={"3": (1,)})
    found = candidates(dataset)
    assert found[HOLDING] == [(2, 0, 1), (1, 0, 1), (0, 0, 1)]
    assert found[OVER] == [(2, 1, 0)]
    assert set(found) == {HOLDING, CHASING, OVER}


def test_the_draw_depends_on_the_seed_alone() -> None:
    dataset = SceneGraphDataset(VOCABULARY, tuple(graph(n, [(0, 1, OVER)]) for n in range(60)))
    first = candidates(dataset, seed=1, limit=8)[OVER]
    assert first == candidates(dataset, seed=1, limit=8)[OVER]
    assert len({number for number, *_ in first}) == 8
    assert first != candidates(dataset, seed=2, limit=8)[OVER]


# ---------------------------------------------------------------- examples of a workspace


@pytest.fixture
def examples(finished: Campaign) -> Examples:
    return Examples(finished.workspace, lambda: finished.dataset, count=4)


def test_examples_are_of_the_predicate_and_of_different_images(
    examples: Examples, finished: Campaign
) -> None:
    assert examples.predicates() == [HOLDING, CHASING, OVER]
    known = {
        (image.image_id, *row)
        for image in finished.dataset.graphs
        for row in image.relations.tolist()
    }
    for predicate in (HOLDING, CHASING, OVER):
        found = examples.of(predicate)
        assert len({example.image_id for example in found}) == len(found) > 0
        for example in found:
            assert (example.image_id, example.subject, example.object, predicate) in known
            assert example.picture.startswith(b"\xff\xd8")
    assert len(examples.of(OVER)) == 4
    assert examples.of(OVER) == examples.of(OVER)
    assert len({(e.subject_name, e.object_name) for e in examples.of(OVER)}) > 1
    assert examples.of(KISSING) == ()


def test_nothing_of_an_example_tells_the_predicate(examples: Examples) -> None:
    names = VOCABULARY.predicate_classes
    for example in examples.of(HOLDING):
        assert not any(name in repr(example) for name in names)


def test_answers_fill_up_where_the_annotations_have_too_few(finished: Campaign) -> None:
    keys = [key for key in finished.workspace.source.keys() or () if "07" not in key]
    answers: dict[int, list[Affirmed]] = {KISSING: []}
    examples = Examples(finished.workspace, lambda: finished.dataset, lambda: answers, count=3)
    assert examples.of(KISSING) == ()
    answers[KISSING].append(Affirmed("1000", keys[0], 0, 3))
    (first,) = examples.of(KISSING)
    assert (first.image_id, first.subject, first.object) == ("1000", 0, 3)
    assert KISSING in examples.predicates()
    answers[KISSING] += [Affirmed("1000", keys[0], 1, 2), Affirmed("1001", keys[1], 1, 2)]
    assert [example.image_id for example in examples.of(KISSING)] == ["1000", "1001"]
    assert examples.of(KISSING)[0] == first


def test_broken_pictures_are_passed_over(tmp_path: Path, finished: Campaign) -> None:
    ids = id_map(20, 20, s1=(0, 0, 8, 8), s2=(10, 0, 18, 8), s3=(0, 10, 8, 18))
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(photograph(20, 20)[: 30 if number == 1 else None])
        write_panoptic_png(tmp_path / f"{number}.png", ids)
    (tmp_path / "2.png").unlink()
    graphs = tuple(graph(number, [(0, 1, OVER)]) for number in range(4))
    dataset = SceneGraphDataset(VOCABULARY, graphs, root=tmp_path)
    found = Examples(finished.workspace, lambda: dataset).of(OVER)
    assert sorted(example.image_id for example in found) == ["0", "3"]


def test_annotations_without_pictures_are_no_examples(
    tmp_path: Path, finished: Campaign, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = SceneGraphDataset(VOCABULARY, (graph(0, [(0, 1, OVER)]),), root=tmp_path)
    examples = Examples(finished.workspace, lambda: dataset)
    assert examples.predicates() == []
    assert "none of the pictures" in caplog.text
    assert Examples(finished.workspace, None).predicates() == []
