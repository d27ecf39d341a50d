"""Protocols: named sets of the choices that a definition leaves open.

Numbers are comparable under one protocol only, so every report names its own. A protocol is data;
the code that computes a metric asks for a choice, never for a protocol's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from haystack.errors import InputError
from haystack.metrics.functional.matching import MatchRule

Skipped = Literal["nothing", "missing", "empty"]
"""Images without predictions that a mean leaves out: none of them, those that the predictions do
not mention, or also those for which they hold no pair."""


@dataclass(frozen=True)
class Protocol:
    """The choices behind the metrics.

    Args:
        name: as reports spell it.
        no_relation_rows: what a row with predicate -1 ("no relation at all") means: a negative
            for every predicate, or nothing.
        repeated_labels: P-AUC, PDD, PDO: rows that label one triple again are one sample (and a
            triple labelled both ways is an error), or a sample each (contradictions included).
        missing_score: score of a labelled pair that the predictions lack; its rank is always the
            last, n - 1.
        last_predicate_ranked: whether the last score column takes part in the ranks of PDD and
            PDO. Where it does not, it is the "no relation" column of predictions that have one,
            else the last predicate, which then has neither PDD nor PDO; n stays P.
        min_positives: P-AUC, PDD and PDO of a predicate with fewer positives are left undefined.
        undefined_in_mean: a P-AUC, PDD or PDO that is undefined for another reason is left out
            of the mean, or makes it undefined as well.
        repeated_triplets: recalls: a triplet annotated again counts once, or as often as it is.
        pooled_predicates: the recall of a predicate: hits over triplets of all images, instead of
            the mean over the images that hold it.
        absent_predicates: a predicate without a triplet is left out of mR and IMR, counts as 0,
            or makes them undefined.
        skipped_images: images that R and its kin leave out, and the pooled metrics.
        skipped_in_predicate_means: the same for mR and IMR.
        unconstrained_candidates: without graph constraint only so many candidates of an image
            count; None = all. 0 = nothing is computed without graph constraint.
        unconstrained_related: without graph constraint, a score is multiplied by one minus the
            pair's "no relation", where predictions have it.
        pair_recall_cuts_truth: PR@K asks for the first K annotated triplets' pairs only.
        repeated_pairs: a pair that a prediction gives again is an error, only its first row is
            read from files (elsewhere it is an error), or each row is a candidate of its own.
        compares: what must overlap for a pair to hit a triplet of its classes: subject and object
            each, as their match says, or phrases: the union of the pair's two regions with that of
            the triplet's (boxes: the smallest box around both). Phrases are detected: the
            predictions must have objects of their own.
        match: which predicted objects stand for which annotated ones (SGDet, SGCls).
        regions: what is compared: masks, boxes, or masks where both sides have them, else boxes.
        plus_one: whether a box's last pixel belongs to it, width = x2 - x1 + 1.
        iou_threshold: the IoU that is enough.
        inclusive: whether an IoU of exactly the threshold is enough.
        predcls_by_overlap: PredCls is matched like SGDet, the annotated objects against
            themselves; otherwise pairs are the same if their objects are.
    """

    name: str
    no_relation_rows: Literal["negative-for-all", "ignore"] = "negative-for-all"
    repeated_labels: Literal["merge", "keep"] = "merge"
    missing_score: float = -math.inf
    last_predicate_ranked: bool = True
    min_positives: int = 0
    undefined_in_mean: Literal["skip", "propagate"] = "skip"
    repeated_triplets: Literal["merge", "keep"] = "merge"
    pooled_predicates: bool = False
    absent_predicates: Literal["skip", "zero", "undefined"] = "skip"
    skipped_images: Skipped = "nothing"
    skipped_in_predicate_means: Skipped = "nothing"
    unconstrained_candidates: int | None = None
    unconstrained_related: bool = False
    pair_recall_cuts_truth: bool = False
    repeated_pairs: Literal["refuse", "first", "keep"] = "refuse"
    compares: Literal["objects", "phrases"] = "objects"
    match: MatchRule = "one-to-one"
    regions: Literal["masks", "boxes", "either"] = "either"
    plus_one: bool = False
    iou_threshold: float = 0.5
    inclusive: bool = True
    predcls_by_overlap: bool = False


_PAPER = Protocol("paper")

_HAYSTACK_V1 = Protocol(
    "haystack-v1",
    no_relation_rows="ignore",
    repeated_labels="keep",
    missing_score=0.0,
    last_predicate_ranked=False,
    min_positives=4,
    undefined_in_mean="propagate",
)

_OPENPSG = Protocol(
    "openpsg",
    absent_predicates="zero",
    skipped_images="empty",
    skipped_in_predicate_means="empty",
    unconstrained_candidates=100,
    repeated_pairs="keep",
    match="many-to-many",
    regions="boxes",
    predcls_by_overlap=True,
)

_OPENPSG_PAN_SEG = Protocol(
    "openpsg-pan_seg",
    absent_predicates="zero",
    skipped_images="empty",
    skipped_in_predicate_means="empty",
    unconstrained_candidates=0,
    repeated_pairs="keep",
    match="many-to-many",
    regions="masks",
)

_OPENPSG_PHRDET = replace(
    _OPENPSG, name="openpsg-phrdet", compares="phrases", predcls_by_overlap=False
)

_OPENPSG_PAN_SEG_PHRDET = replace(
    _OPENPSG_PAN_SEG, name="openpsg-pan_seg-phrdet", compares="phrases"
)

_SGBENCH = Protocol(
    "sgbench",
    absent_predicates="undefined",
    skipped_in_predicate_means="missing",
    pair_recall_cuts_truth=True,
    match="many-to-one",
)

_KT = Protocol(
    "kt",
    repeated_triplets="keep",
    absent_predicates="zero",
    skipped_images="empty",
    skipped_in_predicate_means="empty",
    unconstrained_candidates=100,
    repeated_pairs="keep",
    match="many-to-many",
    regions="boxes",
    plus_one=True,
    predcls_by_overlap=True,
)

_VCTREE = Protocol(
    "vctree",
    repeated_triplets="keep",
    pooled_predicates=True,
    absent_predicates="zero",
    unconstrained_candidates=100,
    repeated_pairs="keep",
    match="many-to-many",
    regions="boxes",
    plus_one=True,
    predcls_by_overlap=True,
)

_SINGLE_MPO = Protocol(
    "single-mpo",
    repeated_triplets="keep",
    absent_predicates="undefined",
    unconstrained_related=True,
    repeated_pairs="first",
    match="one-to-one",
    regions="masks",
    inclusive=False,
)

_SINGLE_MPO_BOXES = replace(_SINGLE_MPO, name="single-mpo-boxes", regions="boxes")

PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        protocol.name: protocol
        for protocol in (
            _PAPER,
            _HAYSTACK_V1,
            _OPENPSG,
            _OPENPSG_PAN_SEG,
            _OPENPSG_PHRDET,
            _OPENPSG_PAN_SEG_PHRDET,
            _SGBENCH,
            _KT,
            _VCTREE,
            _SINGLE_MPO,
            _SINGLE_MPO_BOXES,
        )
    }
)
"""Protocol by name. Where a peer sorts unstably, ties go as in ``paper``.

- ``paper``: the definitions of the papers. P-AUC, PDD and PDO: Haystack (Lorenz et al., 2023,
  section 4). Recalls: distinct triplets, images with triplets, predicates that occur; an image
  without predictions counts as 0. Objects are matched one to one, so that several masks for one
  object are no way to several predicates for one pair (Lorenz et al., A Fair Ranking and New
  Model for Panoptic Scene Graph Generation, 2024).
- ``haystack-v1``: what the Haystack authors' published script computes. It differs from their
  paper: rows with predicate -1 are skipped; every row is a sample, repetitions and contradictions
  included; a missing pair scores 0; ranks are taken without the last score column (right for a
  file with "no relation" last, while a file of P columns loses its last predicate as a
  competitor); only predicates with more than 3 positives count, and their plain mean is undefined
  if one of them has no negative. An image that the predictions lack and a label of the predicate
  cut off, at which the script stops, are a missing image and an undefined PDD and PDO.
- ``openpsg``: OpenPSG's evaluator with boxes, its default. Many to many: a prediction may hit
  several triplets, several predictions may be of one object, and rows may repeat a pair. In
  PredCls too objects are matched by class and box, so that a pair of other objects hits where the
  boxes overlap by half, and an object whose box is empty is never hit. mR divides by all
  predicates, an absent one counting as 0. Images for which nothing is predicted are skipped, which
  flatters a model that gives up. Without graph constraint only the first 100 candidates of an
  image count, whatever K; ng-A@K is not cut.
- ``openpsg-pan_seg``: the same evaluator with masks. Without graph constraint it computes
  nothing, yet prints its empty tables: ngR and ng-A are undefined and ng-mR is 0. That is kept;
  ng-IMR and ng-wIMR, which it has not, are undefined.
- ``openpsg-phrdet``, ``openpsg-pan_seg-phrdet``: its phrase detection, which it prints beside that
  of SGDet: as the two above, but a pair hits if the union of its two boxes, or masks, overlaps that
  of the triplet's. ``R@inf`` asks for such a pair; InstR, P-AUC, PDD, PDO and the missing pairs
  ask for objects, as above.
- ``sgbench``: SGBench 1.0. Each prediction goes to one object, an object may get many. mR is
  undefined as soon as one predicate is absent. An image that the predictions lack counts as 0 in R
  but, since its script adds to NaN there, not at all in mR; kept. PR@K cuts the annotations to
  their first K too (K = 1, five pairs, one hit: 1.0); kept.
- ``kt``: KaihuaTang's Scene-Graph-Benchmark. As ``openpsg``, with the last pixel inside a box
  (+1), and annotated repetitions counted as often as they occur. In A@K pairs are the annotated
  ones by index.
- ``vctree``: the evaluation of VCTree's first code (2019). In mR ("cls avg") a predicate's recall
  is pooled, hits of all images over triplets of all images; an image for which nothing is predicted
  counts as 0; otherwise as ``kt``. It gives boxes in images scaled to 1024 pixels, which decides
  what +1 weighs. Its "total R", which pools all triplets, is not computed.
- ``single-mpo``: fair-psgg's evaluation script (Lorenz et al., 2024): one mask for an object, one
  prediction for a pair; IoU above 0.5, not equal to it; annotated repetitions count as often as
  they occur; without graph constraint scores are multiplied by 1 - p(no relation); mR is undefined
  as soon as one predicate is absent. (Its data loader drops relations of an object with itself,
  its evaluation does not.)
- ``single-mpo-boxes``: the same script without ``--seg``: it matches boxes, and looks at no mask.
"""


def get_protocol(name: str) -> Protocol:
    """The protocol called ``name``.

    Args:
        name: a key of :data:`PROTOCOLS`.

    Raises:
        InputError: there is none; the message lists those there are.

    Example:
        >>> get_protocol("haystack-v1").min_positives
        4
    """
    try:
        return PROTOCOLS[name]
    except KeyError:
        known = ", ".join(PROTOCOLS)
        raise InputError(f"unknown protocol {name!r}; known protocols: {known}") from None
