from __future__ import annotations

from pathlib import Path

import pytest

from haystack.errors import InputError
from haystack.pipeline.clustering.clusters_file import (
    Cluster,
    dump_clusters,
    load_clusters,
    parse_clusters,
    with_included,
)

CLUSTERS = [Cluster(0, "beach", 3), Cluster(1, "logos", 9, included=False), Cluster(2, "köln", 1)]


def test_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "clusters.yaml"
    path.write_text(dump_clusters(CLUSTERS, "abc"), encoding="utf-8")
    assert load_clusters(path) == (CLUSTERS, "abc")
    path.write_text("clusters: {")
    with pytest.raises(InputError, match="cannot read the clusters") as caught:
        load_clusters(path)
    assert "\n" not in str(caught.value)


def test_one_word_is_changed_and_all_else_stays(tmp_path: Path) -> None:
    text = (
        "clustering: abc\r\n"
        "# looked at on Monday\r\n"
        "clusters:\r\n"
        "- {id: 0, name: 'included: false', size: 3, included: yes}  # sea\r\n"
        "- id: 1\r\n"
        "  included:   false # all logos\r\n"
        "  name: logos\r\n"
        "  size: 9\r\n"
    )
    once = with_included(text, 1, True, tmp_path)
    assert once == text.replace("included:   false #", "included:   true #")
    twice = with_included(once, 0, False, tmp_path)
    assert twice == once.replace("included: yes}", "included: false}")
    clusters, clustering = parse_clusters(twice, tmp_path)
    assert [cluster.included for cluster in clusters] == [False, True]
    assert (clusters[0].name, clustering) == ("included: false", "abc")


def test_one_word_that_stands_for_several_clusters_changes_one(tmp_path: Path) -> None:
    text = dump_clusters([Cluster(number, f"c{number}", 1) for number in range(3)], "abc")
    text = text.replace("included: true", "included: &yes true", 1)
    text = text.replace("included: true", "included: *yes")
    for number in range(3):
        clusters, _ = parse_clusters(with_included(text, number, False, tmp_path), tmp_path)
        assert [cluster.id for cluster in clusters if not cluster.included] == [number]
