"""``clusters.yaml``: the clusters by name, and which of them are included; people edit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from haystack.errors import InputError


@dataclass(frozen=True)
class Cluster:
    """One entry of ``clusters.yaml``.

    Args:
        id: number of the cluster.
        name: free text, shown on contact sheets and reports.
        size: number of images.
        included: whether images of this cluster are proposed.
    """

    id: int
    name: str
    size: int
    included: bool = True


def dump_clusters(clusters: Sequence[Cluster], clustering: str) -> str:
    """The text of ``clusters.yaml``.

    Args:
        clusters: by id.
        clustering: hash of the clustering that they name, so that edits are kept as long as it
            stays the same.
    """
    import yaml

    head = "# Set 'included: false' where a cluster's images are unsuitable; names are free text.\n"
    content = {"clustering": clustering, "clusters": [asdict(cluster) for cluster in clusters]}
    return head + str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def check_clusters(clusters: Sequence[Cluster], count: int, path: Path) -> None:
    """Refuse a list that has lost or gained entries.

    Args:
        clusters: as read from ``clusters.yaml``.
        count: how many clusters there are.
        path: the file, for the error.

    Raises:
        InputError: there are more or fewer.
    """
    if len(clusters) != count:
        raise InputError(
            f"expected {count} entries under 'clusters', one for each cluster, got "
            f"{len(clusters)}; put back what was removed (exclude a cluster by 'included: false'), "
            "or delete the file and run haystack cluster again",
            path=path,
        )


def load_clusters(path: Path) -> tuple[list[Cluster], str]:
    """Clusters of ``clusters.yaml``, by id, and the hash of the clustering.

    Raises:
        InputError: someone's edit broke the file.
    """
    return parse_clusters(read_text(path), path)


def read_text(path: Path) -> str:
    """The text of ``clusters.yaml`` as it stands there, line ends included.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the clusters: {error}", path=path) from error


def parse_clusters(text: str, path: Path) -> tuple[list[Cluster], str]:
    """As :func:`load_clusters`, of a text that was read already; ``path`` is named in errors."""
    import yaml

    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"cannot read the clusters: {reason}", path=path) from error
    rows = content.get("clusters") if isinstance(content, Mapping) else None
    if not isinstance(rows, list):
        raise InputError("expected a list under 'clusters'", path=path)
    clusters = [_cluster(row, number, path) for number, row in enumerate(rows)]
    return clusters, str(content.get("clustering", ""))


def with_included(text: str, cluster: int, included: bool, path: Path) -> str:
    """The text of ``clusters.yaml`` with one cluster included or excluded.

    Only that word changes: comments and layout of whoever edited the file stay. Where one word
    stands for several clusters (a YAML alias), the file is written anew.

    Args:
        text: a text that :func:`parse_clusters` accepts.
        cluster: its number.
        included: what to say of it.
        path: the file, for errors.
    """
    import yaml

    clusters, clustering = parse_clusters(text, path)
    clusters[cluster] = replace(clusters[cluster], included=included)
    content = _child(yaml.compose(text, Loader=yaml.SafeLoader), "clusters")
    word = _child(content.value[cluster], "included")
    before, after = text[: word.start_mark.index], text[word.end_mark.index :]
    edited = f"{before}{'true' if included else 'false'}{after}"
    try:
        is_right = parse_clusters(edited, path) == (clusters, clustering)
    except InputError:
        is_right = False
    return edited if is_right else dump_clusters(clusters, clustering)


def _child(mapping: Any, key: str) -> Any:
    """The value of a key in a composed YAML mapping; of a repeated key, the last, as when read."""
    return [value for name, value in mapping.value if name.value == key][-1]


def _cluster(row: object, number: int, path: Path) -> Cluster:
    kinds = {"id": int, "name": str, "size": int, "included": bool}
    where = f"clusters[{number}]"
    if not isinstance(row, Mapping) or set(row) != set(kinds):
        raise InputError(
            f"expected the keys {', '.join(kinds)}, got {row!r}", path=path, record=where
        )
    for key, kind in kinds.items():
        if type(row[key]) is not kind:
            raise InputError(
                f"expected {key} to be {'true or false' if kind is bool else kind.__name__}, "
                f"got {row[key]!r}",
                path=path,
                record=where,
            )
    if row["id"] != number:
        raise InputError(
            f"expected id {number}, got {row['id']}; keep the entries in their order, and exclude "
            "a cluster by 'included: false' instead of removing it",
            path=path,
            record=where,
        )
    return Cluster(**row)
