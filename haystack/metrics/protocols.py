"""Protocols: named sets of the choices that a definition leaves open.

Numbers are comparable under one protocol only, so every report names its own. A protocol is data;
the code that computes a metric asks for a choice, never for a protocol's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from haystack.errors import InputError


@dataclass(frozen=True)
class Protocol:
    """The choices behind P-AUC, PDD, PDO and the recalls.

    Args:
        name: as reports spell it.
        no_relation_rows: what a row with predicate -1 ("no relation at all") means: a negative
            for every predicate, or nothing.
        repeated_labels: rows that label one triple again: one sample (and a triple labelled both
            ways is an error), or a sample each (contradictions included). The recalls always
            count distinct triplets.
        missing_score: score of a labelled pair that the predictions lack; its rank is always the
            last, n - 1.
        last_predicate_ranked: whether the last score column takes part in the ranks of PDD and
            PDO. Where it does not, it is the "no relation" column of predictions that have one,
            else the last predicate, which then has neither PDD nor PDO; n stays P.
        min_positives: P-AUC, PDD and PDO of a predicate with fewer positives are left undefined.
        undefined_in_mean: a P-AUC, PDD or PDO that is undefined for another reason is left out
            of the mean, or makes it undefined as well.
    """

    name: str
    no_relation_rows: Literal["negative-for-all", "ignore"] = "negative-for-all"
    repeated_labels: Literal["merge", "keep"] = "merge"
    missing_score: float = -math.inf
    last_predicate_ranked: bool = True
    min_positives: int = 0
    undefined_in_mean: Literal["skip", "propagate"] = "skip"


PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        protocol.name: protocol
        for protocol in (
            Protocol("paper"),
            Protocol(
                "haystack-v1",
                no_relation_rows="ignore",
                repeated_labels="keep",
                missing_score=0.0,
                last_predicate_ranked=False,
                min_positives=4,
                undefined_in_mean="propagate",
            ),
        )
    }
)
"""Protocol by name.

- ``paper``: the definitions of the Haystack paper (Lorenz et al., 2023, section 4).
- ``haystack-v1``: what its authors' published script computes. It differs from their paper: rows
  with predicate -1 are skipped; every row is a sample, repetitions and contradictions included; a
  missing pair scores 0; ranks are taken without the last score column (right for a file with "no
  relation" last, while a file of P columns loses its last predicate as a competitor); only
  predicates with more than 3 positives count, and their plain mean is undefined if one of them has
  no negative. Where the script gives no stable answer this protocol does: ties, which it breaks
  by an unstable sort, go as in ``paper``; an image that the predictions lack and a label of the
  predicate cut off, at which it stops, are a missing image and an undefined PDD and PDO.
"""


def get_protocol(name: str) -> Protocol:
    """The protocol called ``name``.

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
