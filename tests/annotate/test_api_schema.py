"""Requests that the API's schema allows, and some that it forbids, at a service that runs."""

from __future__ import annotations

from functools import partial

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="needs the package schemathesis")
pytest.importorskip("fastapi", reason="the annotation page needs FastAPI")

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from schemathesis import GenerationMode  # noqa: E402

from haystack.annotate.live import LiveSummary  # noqa: E402
from haystack.annotate.service.clusters import add_clusters  # noqa: E402
from haystack.annotate.service.names import NamesDesk, add_names  # noqa: E402
from haystack.annotate.service.progress import Figure, add_progress  # noqa: E402
from haystack.annotate.service.site import Site  # noqa: E402
from haystack.annotate.store.accounts import Accounts  # noqa: E402
from haystack.annotate.summary import Summarizer  # noqa: E402

# Well-formed requests may be refused: there is no such proposal, or no such predicate.
NOT_CHECKED = [schemathesis.checks.positive_data_acceptance]
EXAMPLES = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def token(sqlite_store, make_queue):
    """A lead's token, in a campaign with questions."""
    sqlite_store.load_proposals(make_queue(), round=0)
    return Accounts(sqlite_store.database).add("lea", "lead")


@pytest.fixture
def schema(run_service, sqlite_store, media, token, clusters, examples):
    """The schema that a running service with a login gives."""

    def progress(app):
        live = LiveSummary(sqlite_store, Summarizer(str))
        add_progress(app, live, str, {"share": Figure("Share", lambda _: b"<svg/>")})

    names = ("eating", "riding")
    parts = [
        progress,
        partial(add_clusters, clusters=clusters),
        partial(add_names, desk=NamesDesk(sqlite_store, examples, names, names)),
    ]
    service = run_service(sqlite_store, media, site=Site("0.0.0.0"), parts=parts)
    headers = {"Authorization": f"Bearer {token}"}
    loaded = schemathesis.openapi.from_url(f"{service.url}openapi.json", headers=headers)
    loaded.config.update(headers=headers)
    return loaded


def test_the_service_keeps_its_schema(schema):
    tested = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))

        @EXAMPLES
        @given(case=cases)
        def keeps(case):
            case.call_and_validate(timeout=20, excluded_checks=NOT_CHECKED)

        keeps()
        tested.add(operation.label)
    assert {"POST /api/answer", "GET /api/next", "POST /api/login", "GET /healthz"} <= tested
    assert {"POST /api/clusters/{cluster}", "POST /api/wordings", "POST /api/names"} <= tested
    assert {"GET /api/summary", "GET /api/figures/{name}.svg"} <= tested


def test_every_route_is_in_the_schema_with_its_refusals(schema):
    for path, operations in schema.raw_schema["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation["description"], where
            responses = operation["responses"]
            assert responses.keys() in ({"200", "4XX", "5XX"}, {"204", "4XX", "5XX"}), where
            assert responses.get("200", {"content": "none"}).get("content"), where
    assert set(schema.raw_schema["components"]["securitySchemes"]) == {"token", "cookie"}
