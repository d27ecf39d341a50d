from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pipeline_campaign import Campaign

from haystack.annotate.records import Answer, Proposal
from haystack.cli.truth import check_answered
from haystack.errors import InputError
from haystack.pipeline import segment_index
from haystack.pipeline.segment_index import INDEX, Place, SegmentIndex
from haystack.scene_graph import segments_identity


def test_every_image_is_where_the_index_says(finished: Campaign) -> None:
    index = SegmentIndex(finished.root)
    images = {}
    for shard in finished.source.shards():
        for row, image in enumerate(finished.workspace.segmented(shard)):
            place = Place(f"segment/{shard}.parquet", row)
            images[image.image_id] = place
            assert index.place_of_key(image.image_key) == place
    assert len({place.path for place in images.values()}) > 1
    assert index.places([*images, "another"]) == images
    assert index.place_of_key("another.jpg") is None
    for path, rows in index.by_shard(images).items():
        assert {i: Place(path, row) for row, i in rows.items()}.items() <= images.items()


def test_the_index_is_made_anew_when_the_segments_changed_and_only_then(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign.run("embed", "cluster", "segment")
    built = []
    build = segment_index._build
    monkeypatch.setattr(
        segment_index, "_build", lambda *args: (built.append(args[-1]), build(*args))
    )
    key = campaign.dataset.graphs[-1].image_id
    first = SegmentIndex(campaign.root).places([key])
    content = (campaign.root / INDEX).read_bytes()
    assert SegmentIndex(campaign.root).places([key]) == first
    assert len(built) == 1
    (campaign.root / INDEX).write_bytes(b"no index")
    assert SegmentIndex(campaign.root).places([key]) == first
    assert (campaign.root / INDEX).read_bytes() == content, "equal segments give equal bytes"
    smaller = Campaign(campaign.root, campaign.source_root, shard_size=1)
    smaller.run("segment")
    assert SegmentIndex(campaign.root).places([key]) != first
    assert len(set(built)) == 2


def test_shards_that_are_not_segmented_yet_are_not_in_it(campaign: Campaign) -> None:
    campaign.run("segment")
    last = campaign.source.shards()[-1]
    ids = [image.image_id for image in campaign.workspace.segmented(last)]
    assert SegmentIndex(campaign.root).places(ids).keys() == set(ids)
    (campaign.root / f"segment/{last}.parquet").unlink()
    assert SegmentIndex(campaign.root).places(ids) == {}


def test_few_answers_read_few_shards(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking answers, exporting, scoring again: only the shard of the answered image."""
    campaign.run()
    shard = campaign.source.shards()[1]
    image = next(campaign.workspace.segmented(shard))
    identity = segments_identity(image.segments)
    opened: list[str] = []
    real = pq.ParquetFile

    def spy(path: Path, *args: object, **options: object) -> pq.ParquetFile:
        opened.append(Path(path).relative_to(campaign.root).as_posix())
        return real(path, *args, **options)

    monkeypatch.setattr(pq, "ParquetFile", spy)
    check_answered(campaign.workspace, [answer(image.image_id, identity)])
    assert opened == [f"segment/{shard}.parquet"]
    with pytest.raises(InputError, match="answered on other segments"):
        check_answered(campaign.workspace, [answer(image.image_id, "0123")])
    opened.clear()
    list(campaign.workspace.segmented_images([image.image_id]))
    assert opened == [f"segment/{shard}.parquet"]
    opened.clear()
    campaign.answered = [(image.image_id, 0, 1, 2)]
    job = campaign.job("score")
    for name in campaign.source.shards():
        job.fingerprint(name)
    assert opened == [], "the index alone says whose answers they are"
    assert job.fingerprint(shard)["answered"] == {image.image_id: [(0, 1, 2)]}
    assert all(not job.fingerprint(s)["answered"] for s in campaign.source.shards() if s != shard)


def answer(image_id: str, segments: str) -> Answer:
    proposal = Proposal(image_id, 0, 1, 2, "key", 0.0, 0, 0, segments=segments)
    return Answer(proposal, "correct", "ann", "k", None, "2024-01-01T00:00:00Z")


def test_two_images_with_one_id_are_named(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign.run("segment")
    ids: Sequence[dict[str, str]] = [{"a.jpg": "1", "b.jpg": "2"}, {"c.jpg": "3"}, {"d.jpg": "2"}]
    parts = iter(ids)
    monkeypatch.setattr(segment_index.tables, "read_segmented_ids", lambda _: next(parts))
    with pytest.raises(InputError, match=r"b\.jpg and d\.jpg took the same record, image id 2"):
        SegmentIndex(campaign.root)
    assert not (campaign.root / INDEX).exists()


def test_an_index_with_damaged_pages_is_made_anew(finished: Campaign) -> None:
    SegmentIndex(finished.root)
    path = finished.root / INDEX
    content = path.read_bytes()
    key = finished.dataset.graphs[0].image_id
    expected = SegmentIndex(finished.root).places([key])
    path.write_bytes(content[:8192] + b"\xff" * (len(content) - 8192))
    assert SegmentIndex(finished.root).places([key]) == expected
    assert path.read_bytes() == content
