"""Settings of the queue and gold items on their way from the command line to the store."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import pytest

pytest.importorskip("sqlalchemy", reason="the annotation store needs SQLAlchemy")

from haystack.annotate.records import Proposal
from haystack.annotate.settings import QueueSettings
from haystack.annotate.store.store import AnnotationStore
from haystack.cli.annotate import _hide_gold, _queue_settings
from haystack.errors import InputError
from haystack.io import read_psg
from haystack.pipeline.config import AnnotateConfig, load_config
from haystack.vocabulary import psg_vocabulary


@pytest.fixture(scope="module")
def known():
    return read_psg("psg-mini")


def workspace_of(known, *settings):
    return SimpleNamespace(
        config=load_config(overrides=settings),
        vocabulary=psg_vocabulary(),
        segments_of=lambda graphs: {i: known.by_id()[i].segments for i in graphs},
    )


def test_the_workspace_and_the_store_know_the_same_settings(known):
    """They cannot share a class: the store knows of no workspace, the pipeline of no store."""
    workspace_only, store_only = {"gold_items", "adjudication"}, {"tie_breaker"}
    configured = {field.name for field in fields(AnnotateConfig)} - workspace_only
    assert configured == {field.name for field in fields(QueueSettings)} - store_only
    untouched = _queue_settings(workspace_of(known))
    assert untouched == QueueSettings()
    changed = {
        **{"copies": "2", "share": "0.5", "copies_of": "[eating=3]", "adjudication": "annotator"},
        **{"lease_seconds": "60", "gold_rate": "0.1", "repeat_rate": "0.05", "repeat_after": "20"},
    }
    assert set(changed) == configured | {"adjudication"}
    for name, value in changed.items():
        found = _queue_settings(workspace_of(known, f"annotate.{name}={value}"))
        differing = {
            f.name for f in fields(found) if getattr(found, f.name) != getattr(untouched, f.name)
        }
        assert differing == {"tie_breaker" if name == "adjudication" else name}


def test_settings_of_the_queue_reach_the_store(known):
    workspace = workspace_of(
        known,
        "annotate.copies=2",
        "annotate.share=0.5",
        "annotate.copies_of=[eating=3, on=1]",
        "annotate.adjudication=annotator",
        "annotate.lease_seconds=60",
        "annotate.gold_rate=0.1",
        "annotate.repeat_rate=0.05",
        "annotate.repeat_after=20",
    )
    number = workspace.vocabulary.predicate_index
    assert _queue_settings(workspace) == QueueSettings(
        2, 0.5, {number("eating"): 3, number("on"): 1}, True, 60.0, 0.1, 0.05, 20
    )


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("annotate.copies_of=[eating]", "'annotate.copies_of' expects entries such as eating=2"),
        ("annotate.copies_of=[eating=x]", "expects entries such as eating=2, got 'eating=x'"),
        ("annotate.copies_of=[floating=2]", "floating"),
        ("annotate.adjudication=nobody", "expects one of lead, annotator"),
        ("annotate.copies=0", "expected 1 to 100 copies"),
    ],
)
def test_settings_that_make_no_sense_are_refused(known, setting, sentence):
    with pytest.raises(InputError, match=sentence):
        _queue_settings(workspace_of(known, setting))


def test_gold_items_come_from_known_annotations(known, tmp_path):
    questions = [
        Proposal(graph.image_id, int(s), int(o), int(p), graph.file_name, 0.0, 0, rank)
        for rank, (graph, (s, o, p)) in enumerate(
            (graph, row) for graph in known.graphs for row in graph.relations.tolist()
        )
    ]
    workspace = workspace_of(known, "annotate.gold_items=2")
    with AnnotationStore(tmp_path / "annotations.db") as store:
        store.load_proposals(questions, round=0)
        _hide_gold(workspace, store, known)
        chosen = store.gold_items()
        assert {item.verdict for item in chosen} == {"correct"}
        predicates = [item.proposal.predicate for item in chosen]
        assert 0 < max(predicates.count(predicate) for predicate in predicates) <= 2
        _hide_gold(workspace, store, known)
        assert store.gold_items() == chosen
    with AnnotationStore(tmp_path / "others.db") as store:
        store.load_proposals([Proposal("unknown", 0, 1, 0, "x", 0.0, 0, 0)], round=0)
        with pytest.raises(InputError, match="these answer none"):
            _hide_gold(workspace, store, known)
