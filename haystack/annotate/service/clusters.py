"""The clusters page: a lead looks at pictures of each cluster and excludes unsuitable ones."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Protocol
from urllib.parse import urlencode

from fastapi import Depends, FastAPI, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from haystack.annotate.service.identity import lead_only
from haystack.annotate.service.media import media_headers, picture_of
from haystack.annotate.service.pages import add_page

_CLUSTERING = Field(
    max_length=128,
    description="The clustering that the page shows; 409 if the images were clustered anew.",
)


class Cluster(Protocol):
    """One cluster of a campaign's images."""

    @property
    def id(self) -> int:
        """Its number, from 0."""

    @property
    def name(self) -> str:
        """Free text."""

    @property
    def size(self) -> int:
        """How many images it has."""

    @property
    def included(self) -> bool:
        """Whether its images are proposed."""


class Choice(Protocol):
    """Which clusters are included, and what has come of it."""

    @property
    def clustering(self) -> str:
        """Names the clustering; another one for other clusters."""

    @property
    def clusters(self) -> Sequence[Cluster]:
        """By number."""

    @property
    def proposals(self) -> Sequence[int] | None:
        """Proposals in the queue by cluster; None while there is no queue."""

    @property
    def candidates(self) -> Sequence[int] | None:
        """Candidates to propose by cluster; None while there are none."""

    @property
    def to_run(self) -> Sequence[str]:
        """Commands that make the choice take effect, in their order; none when it has."""


class Sample(Protocol):
    """Images that show what a cluster holds."""

    @property
    def nearest(self) -> Sequence[str]:
        """Image keys, nearest to the centroid first."""

    @property
    def drawn(self) -> Sequence[str]:
        """Image keys, drawn at random."""


class Clusters(Protocol):
    """The clusters of a workspace. Methods are called from several threads at once.

    A method raises :class:`~haystack.errors.ConflictError` when somebody else has changed what it
    is to change, or the images were clustered anew; another
    :class:`~haystack.errors.HaystackError` with a sentence when it cannot give what it is asked.
    """

    def choice(self) -> Choice:
        """The clusters as they are now."""
        ...

    def include(self, cluster: int, included: bool, clustering: str) -> Choice:
        """Include or exclude one cluster; gives the clusters as they are then."""
        ...

    def sample(self, cluster: int, clustering: str) -> Sample:
        """Images of a cluster, to judge it by."""
        ...

    def thumbnail(self, image_key: str) -> bytes:
        """A small picture (JPEG) of an image of the source."""
        ...


class ClusterRow(BaseModel):
    """One cluster as the page shows it."""

    id: int
    name: str
    size: int = Field(description="Images.")
    included: bool
    proposals: int | None = Field(description="In the queue; null while there is none.")
    candidates: int | None = Field(description="To be proposed; null while there are none.")


class ClusterList(BaseModel):
    """All clusters, and what must be run for the choice to take effect."""

    clustering: str
    clusters: list[ClusterRow]
    to_run: list[str]


class ClusterPictures(BaseModel):
    """Addresses of pictures of one cluster."""

    nearest: list[str] = Field(description="Nearest to the centroid first.")
    drawn: list[str] = Field(description="Drawn at random from the whole cluster.")


class Inclusion(BaseModel):
    """Include or exclude a cluster."""

    model_config = ConfigDict(extra="forbid", strict=True)

    included: bool
    clustering: str = _CLUSTERING


ClusterNumber = Annotated[int, Path(ge=0, lt=2**31)]


def add_clusters(app: FastAPI, clusters: Clusters, *, version: str | None = None) -> None:
    """Add the clusters page and its requests; all of them are for leads.

    Args:
        app: the application.
        clusters: those of the workspace.
        version: changes whenever a picture may have changed; part of the addresses. None: a new
            one for every start.
    """
    served = version or secrets.token_hex(8)
    leads = [Depends(lead_only)]
    add_page(app, "/clusters", "clusters.html")

    @app.get("/api/clusters", dependencies=leads)
    def get_clusters() -> ClusterList:
        """All clusters, with their counts."""
        return _listed(clusters.choice())

    @app.post("/api/clusters/{cluster}", dependencies=leads)
    def post_cluster(cluster: ClusterNumber, inclusion: Inclusion) -> ClusterList:
        """Include or exclude a cluster; gives all clusters as they are then."""
        return _listed(clusters.include(cluster, inclusion.included, inclusion.clustering))

    @app.get("/api/clusters/{cluster}/pictures", dependencies=leads)
    def get_pictures(
        cluster: ClusterNumber, clustering: Annotated[str, _CLUSTERING]
    ) -> ClusterPictures:
        """Pictures of a cluster, to judge it by."""
        sample = clusters.sample(cluster, clustering)

        def addresses(keys: Sequence[str]) -> list[str]:
            return [f"/media/thumbnail?{urlencode({'key': key, 'v': served})}" for key in keys]

        return ClusterPictures(nearest=addresses(sample.nearest), drawn=addresses(sample.drawn))

    @app.get(
        "/media/thumbnail",
        response_class=Response,
        dependencies=leads,
        responses=picture_of("image/*"),
    )
    def get_thumbnail(key: str, v: str = "") -> Response:
        """A small picture of an image of the campaign (JPEG)."""
        return Response(
            clusters.thumbnail(key), headers=media_headers("image/jpeg", is_current=v == served)
        )


def _listed(choice: Choice) -> ClusterList:
    def count(counts: Sequence[int] | None, cluster: Cluster) -> int | None:
        return None if counts is None else counts[cluster.id]

    return ClusterList(
        clustering=choice.clustering,
        clusters=[
            ClusterRow(
                id=cluster.id,
                name=cluster.name,
                size=cluster.size,
                included=cluster.included,
                proposals=count(choice.proposals, cluster),
                candidates=count(choice.candidates, cluster),
            )
            for cluster in choice.clusters
        ],
        to_run=list(choice.to_run),
    )
