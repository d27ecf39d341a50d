"""What the pages beside the questions need of a workspace: clusters, and examples of predicates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from haystack.errors import InputError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from haystack.annotate.store.store import AnnotationStore
    from haystack.pipeline.examples import Affirmed
    from haystack.pipeline.workspace import Workspace
    from haystack.scene_graph import SceneGraphDataset


def pages_of(
    workspace: Workspace, store: AnnotationStore, *, hide_classes: bool = False
) -> list[Callable[[FastAPI], None]]:
    """Pages that can be served from what the workspace holds by now; each is a part of the app.

    Args:
        workspace: the campaign.
        store: its answers, words and names.
        hide_classes: describe pictures without being told what is in them.
    """
    from haystack.annotate.service.clusters import add_clusters
    from haystack.annotate.service.names import NamesDesk, add_names
    from haystack.pipeline.cluster_choice import ClusterChoice
    from haystack.pipeline.examples import Examples
    from haystack.pipeline.workspace import CLUSTERS

    vocabulary = workspace.vocabulary
    examples = Examples(workspace, _annotations(workspace), partial(_affirmed, store))
    desk = NamesDesk(
        store,
        examples,
        vocabulary.predicate_classes,
        [vocabulary.annotator_name(number) for number in range(vocabulary.num_predicates)],
        hide_classes=hide_classes,
    )
    pages: list[Callable[[FastAPI], None]] = [partial(add_names, desk=desk)]
    if workspace.path(CLUSTERS).is_file():
        pages.append(partial(add_clusters, clusters=ClusterChoice(workspace)))
    return pages


def require_clusters(workspace: Workspace) -> None:
    """Refuse to prepare what has not got as far as clusters.

    Raises:
        InputError: says what to run.
    """
    try:
        workspace.clusters()
    except InputError as error:
        raise InputError(
            f"there is nothing to prepare before the images are clustered: {error.message}",
            path=workspace.root,
        ) from error


def _annotations(workspace: Workspace) -> Callable[[], SceneGraphDataset] | None:
    """Reads the annotations that the predicates' meaning comes from."""
    from haystack.io import read_psg

    name = workspace.config.score.statistics
    return partial(read_psg, name, vocabulary=workspace.vocabulary) if name else None


def _affirmed(store: AnnotationStore) -> Mapping[int, Sequence[Affirmed]]:
    from haystack.annotate.store.wordings import affirmed_pairs
    from haystack.pipeline.examples import Affirmed

    return {
        predicate: [
            Affirmed(asked.image_id, asked.image_key, asked.subject, asked.object)
            for asked in proposals
        ]
        for predicate, proposals in affirmed_pairs(store.database).items()
    }
