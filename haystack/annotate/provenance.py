"""Where labels come from: who said what, when, asked by which model and in what words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from haystack.annotate.labels import KNOWN, LABELLING, NO_RELATION, Labels
from haystack.annotate.records import Answer

Wording = Callable[[int, str], str]
"""The words in which a predicate was asked about at a time (ISO 8601, UTC)."""


def provenance_rows(
    labels: Labels, answers: Iterable[Answer], wording: Wording, names: Mapping[str, str] | None
) -> list[dict[str, Any]]:
    """One record for each labelled row and each faulty segment, sorted.

    Args:
        labels: of the campaign.
        answers: from which they follow.
        wording: what annotators read.
        names: annotator -> pseudonym; None = people's own names.

    Returns:
        Records as ``haystack.io.provenance.provenance_schema`` has them. ``answers`` of a row are
        all that bear on it, those that were overruled as well.
    """
    named = {} if names is None else names
    by_pair: dict[tuple[str, int, int], list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.purpose in LABELLING:
            asked = answer.proposal
            by_pair[asked.image_id, asked.subject, asked.object].append(answer)

    def told(answer: Answer, counted: bool) -> dict[str, Any]:
        asked = answer.proposal
        return {
            "annotator": named.get(answer.annotator, answer.annotator),
            "verdict": answer.verdict,
            "purpose": answer.purpose,
            "counted": counted,
            "asked_predicate": asked.predicate,
            "wording": wording(asked.predicate, answer.created_at),
            "created_at": answer.created_at,
            "dwell_ms": answer.dwell_ms,
            "score": asked.score,
            "rank": asked.rank,
            "round": asked.round,
            "origin": asked.origin,
        }

    rows = []
    for decided in labels.decisions:
        if decided.outcome not in ("positive", "negative"):
            continue
        subject, object_, predicate = decided.row
        votes = dict(decided.votes)
        bearing = [
            answer
            for answer in by_pair[decided.image_id, subject, object_]
            if predicate == NO_RELATION
            or answer.proposal.predicate == predicate
            or answer.verdict == "no_relation"
        ]
        kind = "no_relation" if predicate == NO_RELATION else decided.outcome
        rows.append(
            {
                "image_id": decided.image_id,
                "subject": subject,
                "object": object_,
                "predicate": predicate,
                "label": kind,
                "rule": decided.rule,
                "known": votes.get(KNOWN),
                "answers": [told(a, votes.get(a.annotator) == a.verdict) for a in bearing],
            }
        )
    rows += _faults(labels, by_pair.values(), told)
    return sorted(rows, key=_place)


def _faults(
    labels: Labels,
    pairs: Iterable[Sequence[Answer]],
    told: Callable[[Answer, bool], dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    reports: dict[tuple[str, int], list[Answer]] = defaultdict(list)
    for pair in pairs:
        for answer in pair:
            asked = answer.proposal
            if answer.verdict == "subject_faulty":
                reports[asked.image_id, asked.subject].append(answer)
            elif answer.verdict == "object_faulty":
                reports[asked.image_id, asked.object].append(answer)
    for image in labels.images.values():
        for segment in image.faulty:
            said = reports[image.image_id, segment]
            yield {
                "image_id": image.image_id,
                "subject": segment,
                "object": None,
                "predicate": None,
                "label": "faulty_segment",
                "rule": "report" if said else "gold",
                "known": None,
                "answers": [told(answer, True) for answer in said],
            }


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    whole = row["object"] is None
    return (row["image_id"], row["subject"], whole, row["object"] or 0, row["predicate"] or 0)
