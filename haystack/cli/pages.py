"""What the pages beside the questions need of a workspace: clusters to choose from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

    from haystack.pipeline.workspace import Workspace


def pages_of(workspace: Workspace) -> list[Callable[[FastAPI], None]]:
    """Pages that can be served from what the workspace holds by now; each is a part of the app."""
    from haystack.annotate.service.clusters import add_clusters
    from haystack.pipeline.cluster_choice import ClusterChoice
    from haystack.pipeline.workspace import CLUSTERS

    pages: list[Callable[[FastAPI], None]] = []
    if workspace.path(CLUSTERS).is_file():
        pages.append(partial(add_clusters, clusters=ClusterChoice(workspace)))
    return pages
