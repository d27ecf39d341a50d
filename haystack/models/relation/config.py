"""Architecture of a relation model: plain types, so that YAML and ``key=value`` can fill it."""

from __future__ import annotations

from dataclasses import dataclass

from haystack.errors import InputError

HEADS = ("vctree", "motifs", "gpsnet", "imp")
FEATURES = ("geometry", "visual")
WIDTHS = ("embed_dim", "roi_dim", "hidden_dim", "pooling_dim", "side_dim")
TRUNKS = ("resnet50", "resnet101")
EMBEDDINGS = ("word_vectors", "learned")


@dataclass
class RelationModelConfig:
    """Architecture of a relation model; stored with its weights.

    Args:
        head: relation head: ``vctree``, ``motifs``, ``gpsnet`` or ``imp``; each uses those of the
            widths below that it has a use for.
        features: where object and pair features come from; ``geometry`` = class names, boxes and
            masks, no picture; ``visual`` = what a detector's trunk sees in the boxes.
        embeddings: class embeddings of the head; ``word_vectors`` = the bundled vectors of the
            class names, kept fixed; ``learned`` = trained from random numbers.
        embed_dim: width of a class embedding; that of the bundled vectors where they are used.
        roi_dim: width of object and pair features.
        hidden_dim: width of the object context; even.
        pooling_dim: width of a pair's representation.
        side_dim: width of the encodings of boxes and positions.
        dropout: on features and on a pair's representation, in training.
        norm_momentum: of the batch normalisations.
        classifies_objects: whether the head has the part that classifies objects whose classes are
            only guessed (SGCls, SGDet); OpenPSG's models do.
        trunk: of ``visual``: ``resnet50`` or ``resnet101``, with a feature pyramid; never trained.
        long_side: of ``visual``: pictures are resized until they just fit both sides, in pixels.
        short_side: the same.
        openpsg_quirks: of ``visual``: draw the object's box as OpenPSG's checkpoints know it, from
            the wrong coordinates.
    """

    head: str = "vctree"
    features: str = "geometry"
    embeddings: str = "word_vectors"
    embed_dim: int = 50
    roi_dim: int = 64
    hidden_dim: int = 64
    pooling_dim: int = 128
    side_dim: int = 32
    dropout: float = 0.3
    norm_momentum: float = 0.05
    classifies_objects: bool = False
    trunk: str = "resnet50"
    long_side: int = 1333
    short_side: int = 800
    openpsg_quirks: bool = False

    def __post_init__(self) -> None:
        known = {
            "head": HEADS,
            "features": FEATURES,
            "embeddings": EMBEDDINGS,
            "trunk": TRUNKS,
        }
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                raise InputError(
                    f"expected {name} to be one of {', '.join(choices)}, "
                    f"got {getattr(self, name)!r}"
                )
        for name in (*WIDTHS, "long_side", "short_side"):
            if getattr(self, name) < 1:
                raise InputError(f"expected a positive {name}, got {getattr(self, name)}")
        if self.hidden_dim % 2:
            raise InputError(f"expected an even hidden_dim, got {self.hidden_dim}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"expected dropout in 0..1, below 1, got {self.dropout}")
        if not 0 < self.norm_momentum <= 1:
            raise InputError(f"expected norm_momentum above 0, at most 1, got {self.norm_momentum}")
