"""Relation heads, one module each, with the parameter names of OpenPSG's checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from haystack.models.relation.heads.base import HeadDims, RelationHead


def build_head(name: str, dims: HeadDims) -> RelationHead:
    """The head of this name; ``haystack.models.relation.config.HEADS`` lists them."""
    from haystack.models.relation.heads.gpsnet import GPSNetHead
    from haystack.models.relation.heads.imp import IMPHead
    from haystack.models.relation.heads.motifs import MotifsHead
    from haystack.models.relation.heads.vctree import VCTreeHead

    heads: dict[str, type[RelationHead]] = {
        "vctree": VCTreeHead,
        "motifs": MotifsHead,
        "gpsnet": GPSNetHead,
        "imp": IMPHead,
    }
    return heads[name](dims)
