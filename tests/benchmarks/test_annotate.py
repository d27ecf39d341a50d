"""The benchmark of the annotation service runs and says what it should."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("fastapi", reason="the annotation service needs FastAPI")

_TINY = {
    "proposals": 600,
    "annotators": 3,
    "seconds": 4,
    "clients": 3,
    "answers": 60,
    "seconds-flat-out": 60,
    "height": 60,
    "width": 90,
    "views": 2,
    "media-height": 60,
    "media-width": 90,
    "media-segments": 4,
    "media-views": 2,
    "media-repeat": 1,
    "media-answers": 2,
}


def test_the_service_is_measured_and_no_question_is_answered_twice(run_benchmark, monkeypatch):
    monkeypatch.delenv("HAYSTACK_POSTGRES_URL", raising=False)
    done = run_benchmark("annotate.py", "--json", sizes=_TINY)
    assert done.returncode == 0, done.stderr
    rows = {(row["part"], row["what"]): row for row in json.loads(done.stdout)["rows"]}
    assert rows["closed", "SQLite: questions answered twice"]["met"] is True
    assert rows["closed", "SQLite: questions answered twice"]["note"].startswith("60 answers")
    assert rows["pace", "SQLite: answer and next, p95"]["goal"] == "< 30 ms"
    assert rows["pace", "SQLite: answer and next, p99"]["goal"] == "< 80 ms"
    for part in ("pace", "closed"):
        assert rows[part, "SQLite: CPU of the service an answer"]["ours"] > 0
    assert rows["picture", "CPU of the service a proposal, 60 x 90"]["ours"] > 0
    for seen in ("first view of the picture", "the picture was seen", "the proposal was seen"):
        assert rows["media", f"60x90 proposal, {seen}"]["ours"] > 0
