from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipeline_campaign import Campaign
from safetensors import SafetensorError

from haystack.errors import InputError
from haystack.pipeline import tables
from haystack.pipeline.propose import Proposal
from haystack.pipeline.scoring.candidates import Candidates


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_features(tmp_path: Path, dtype: str) -> None:
    features = tables.Features(("b/é.jpg", "a.jpg"), np.arange(8, dtype=dtype).reshape(4, 2)[::2])
    tables.write_features(tmp_path / "f", features)
    found = tables.read_features(tmp_path / "f")
    assert found.image_keys == features.image_keys
    assert found.features.dtype == dtype
    np.testing.assert_array_equal(found.features, features.features)
    tables.write_features(tmp_path / "g", features)
    assert (tmp_path / "f").read_bytes() == (tmp_path / "g").read_bytes()


def test_candidates_and_proposals(tmp_path: Path) -> None:
    candidates = Candidates.from_columns(
        ["b", "a", "b"],
        ["8", "7", "8"],
        ["two", "one", "two"],
        cluster=np.array([0, 0, 2]),
        predicate=np.array([1, 3, 1]),
        subject=np.array([0, 1, 2]),
        object=np.array([3, 0, 0]),
        score=np.array([1.5, -2.25, np.float32(0.1)], dtype=np.float32),
    )
    second = np.array([0.5, 0.25, -1], dtype=np.float32)
    for written in (candidates, replace(candidates, second_score=second)):
        tables.write_candidates(tmp_path / "c", written)
        (streamed,) = tables.stream_candidates(tmp_path / "c")
        for found in (tables.read_candidates(tmp_path / "c"), streamed):
            assert found.images.to_pylist() == [
                {"image_key": "a", "image_id": "7", "segments": "one"},
                {"image_key": "b", "image_id": "8", "segments": "two"},
            ]
            for name in ("cluster", "predicate", "image", "subject", "object", "score"):
                np.testing.assert_array_equal(getattr(found, name), getattr(candidates, name))
            assert (found.opinions, written.opinions) in ((1, 1), (2, 2))
            if written.second_score is not None:
                np.testing.assert_array_equal(found.second_score, second)
    (part,) = tables.stream_candidates(tmp_path / "c", lambda rows: rows.score > 1)
    assert part.images["image_key"].to_pylist() == ["b"], "names of what was passed over go"
    assert part.second_score.tolist() == [0.5]
    assert not list(tables.stream_candidates(tmp_path / "c", lambda rows: rows.score > 2))
    assert tables.count_rows(tmp_path / "c") == 3
    alike = Candidates.from_columns(
        ["b", "a", "b"],
        ["8", "7", "8"],
        ["same", "same", "same"],
        **{
            n: getattr(candidates, n)
            for n in ("cluster", "predicate", "subject", "object", "score")
        },
    )
    for name in "cde":  # as many tries, since bytes that vary may agree by chance
        tables.write_candidates(tmp_path / name, alike)
    assert len({(tmp_path / name).read_bytes() for name in "cde"}) == 1
    assert tables.read_candidates(tmp_path / "c").images["segments"].to_pylist() == ["same", "same"]
    tables.write_candidates(tmp_path / "c", Candidates.empty())
    assert len(tables.read_candidates(tmp_path / "c")) == 0
    assert not list(tables.stream_candidates(tmp_path / "c"))
    proposals = [
        Proposal(3, 0, 1, "k", "i", 2, 4, 0.5, 1),
        Proposal(3, 1, 0, "l", "j", 0, 1, -1.0, 8, 0.25, 2, "ab"),
    ]
    tables.write_proposals(tmp_path / "p", proposals)
    assert tables.read_proposals(tmp_path / "p") == proposals
    tables.write_proposals(tmp_path / "p", [])
    assert tables.read_proposals(tmp_path / "p") == []


def test_segments_of_another_version_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image_key": ["a"], "image_id": ["1"]}), tmp_path / "old.parquet")
    with pytest.raises(InputError, match=r"old\.parquet: this file has other columns"):
        list(tables.read_segmented(tmp_path / "old.parquet"))
    with pytest.raises(InputError, match=r"old\.parquet: this file has other columns"):
        tables.read_segments(tmp_path / "old.parquet", [0])


def test_segments_of_some_images_of_a_workspace(finished: Campaign) -> None:
    workspace = finished.workspace
    shards = workspace.source.shards()
    images = {image.image_id: image for name in shards for image in workspace.segmented(name)}
    assert len(shards) > 1
    wanted = {*list(images)[:1], *list(images)[-2:], "of another campaign"}
    expected = {i: images[i] for i in wanted & images.keys()}
    assert workspace.segments_of(wanted) == {i: image.segments for i, image in expected.items()}
    found = list(workspace.segmented_images(wanted))
    assert {image.image_id: image for image in found} == expected
    assert [image.image_key for image in found] == sorted(i.image_key for i in found)
    assert workspace.segments_of(set()) == {}


def test_clusters_of_some_images(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    keys = [f"{shard}/{number:02d}.jpg" for shard in "abc" for number in range(20)]
    cluster = random.integers(0, 5, len(keys))
    distance = np.zeros(20, dtype=np.float32)
    tables.write_assignments(
        tmp_path / "a",
        (
            tables.Assignments(tuple(keys[i : i + 20]), cluster[i : i + 20], distance)
            for i in range(0, 60, 20)
        ),
    )
    cluster_of = dict(zip(keys, cluster.tolist(), strict=True))
    for wanted in (keys[20:40], keys[:1], keys[59:], keys[::7], ["b/0", "d"], []):
        expected = {key: cluster_of[key] for key in wanted if key in cluster_of}
        assert tables.read_clusters(tmp_path / "a", wanted) == expected


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (tables.read_features, "safetensors"),
        (tables.read_candidates, "Parquet"),
        (tables.read_proposals, "Parquet"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, read: object, kind: str) -> None:
    path = tmp_path / "broken"
    path.write_bytes(b"not this")
    with pytest.raises(InputError, match=f"broken: cannot read this {kind} file"):
        read(path)  # type: ignore[operator]


def test_a_full_disk_is_said_as_of_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors has one class of its own for all errors of the system."""
    features = tables.Features(("a",), np.zeros((1, 4), np.float32))
    with pytest.raises(OSError, match="No such file or directory") as caught:
        tables.write_features(tmp_path / "none" / "x.safetensors", features)
    assert caught.value.errno == errno.ENOENT

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: No space left on device (os error 28)")

    monkeypatch.setattr(tables, "save_file", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        tables.write_centroids(tmp_path / "c.safetensors", np.zeros((1, 4), np.float32))
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path / "c.safetensors")
