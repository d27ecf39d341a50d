"""A campaign over tar shards: unequal ones, a broken image, names that repeat across shards."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from pipeline_campaign import BROKEN, Campaign
from processes import snapshot

from haystack.pipeline.media import WorkspaceMedia
from haystack.pipeline.tables import read_assignments
from haystack.pipeline.workspace import ASSIGNMENTS, Workspace

SHARDS = {
    "sa_0": ("image-00.jpg", "image-01.jpg", BROKEN, "image-04.jpg", "image-05.jpg"),
    "sa_1": ("image-06.jpg",),
    "sa_2": (),
    "sa_3": ("image-00.jpg", "image-08.jpg"),  # the first one's name stands in sa_0, too
}


@pytest.fixture
def tars(tmp_path: Path, source_root: Path) -> Path:
    folder = tmp_path / "tars"
    folder.mkdir()
    for shard, names in SHARDS.items():
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for name in names:
                archive.add(source_root / "images" / name, f"./{name}")
    return folder


def over_tars(root: Path, source_root: Path, tars: Path) -> Campaign:
    campaign = Campaign(root, source_root, (f"source.images={tars}", "cluster.sheet_images=2"))
    campaign.source = campaign.workspace.source
    return campaign


@pytest.fixture
def ran(tmp_path: Path, source_root: Path, tars: Path) -> Campaign:
    campaign = over_tars(tmp_path / "work", source_root, tars)
    campaign.run("embed", "cluster")
    return campaign


def forbid_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("a tar was gone through")

    monkeypatch.setattr(tarfile, "open", opened)


def test_every_image_is_clustered_once_under_its_own_key(ran: Campaign) -> None:
    expected = [
        f"{shard}/./{name}" for shard, names in SHARDS.items() for name in names if name != BROKEN
    ]
    assert list(read_assignments(ran.workspace.path(ASSIGNMENTS)).image_keys) == expected
    lines = (ran.root / "quarantine.jsonl").read_text().splitlines()
    (row,) = map(json.loads, lines)
    assert (row["shard"], row["item"]) == ("sa_0", f"sa_0/./{BROKEN}")
    assert row["reason"] == "not an image, or broken at its beginning"


def test_the_page_reads_single_images_without_going_through_tars(
    ran: Campaign, source_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_scans(monkeypatch)
    media = WorkspaceMedia(Workspace.open(ran.root))
    content, mime = media.image("sa_3/./image-08.jpg")
    assert content == (source_root / "images/image-08.jpg").read_bytes()
    assert mime == "image/jpeg"


def test_contact_sheets_read_by_offset(ran: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(ran.root)
    (ran.root / "cluster/sheets/000.jpg").unlink()  # makes the stage run again
    forbid_scans(monkeypatch)
    assert ran.run("cluster")["cluster"].done == 1  # type: ignore[attr-defined]
    assert snapshot(ran.root) == before


def test_indices_are_no_part_of_any_result(
    ran: Campaign, tmp_path: Path, source_root: Path, tars: Path
) -> None:
    """A campaign whose index was lost on the way ends with the same bytes."""
    other = over_tars(tmp_path / "other", source_root, tars)
    other.run("embed")
    for path in (other.root / "index").iterdir():
        path.unlink()
    other.run("cluster")

    def results(campaign: Campaign) -> dict[str, object]:
        content = snapshot(campaign.root)
        return {k: v for k, v in content.items() if k[:5] not in ("index", "works")}

    assert results(other) == results(ran)
    assert {path.name for path in (ran.root / "index").iterdir()} == {
        f"{shard}.parquet" for shard in SHARDS
    }
