"""``haystack annotators``: links are given once, listed, renewed and revoked."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("fastapi", reason="annotation needs FastAPI")

from haystack.annotate.store.accounts import Accounts, EndedTokenError, TokenError
from haystack.annotate.store.database import Database
from haystack.cli import main


@pytest.fixture
def run(tmp_path, capsys):
    """Runs the verb on one campaign; gives the exit code, the JSON object, and stderr."""

    def run_verb(action, *words, code=0):
        assert main(["annotators", action, str(tmp_path), *words, "--json"]) == code
        captured = capsys.readouterr()
        return json.loads(captured.out), captured.err

    return run_verb


@pytest.fixture
def verify(tmp_path):
    def who(token):
        database = Database(tmp_path / "annotations.db")
        try:
            return Accounts(database).verify(token)
        finally:
            database.close()

    return who


def test_links_are_given_listed_renewed_and_revoked(run, verify):
    given = run("add", "ann", "bob", "--public-url", "https://a.example.org")[0]["annotators"]
    assert [one["name"] for one in given] == ["ann", "bob"]
    ann, bob = (one["token"] for one in given)
    assert given[0]["link"] == f"https://a.example.org/login#token={ann}"
    run("add", "lea", "--lead", "--expires", "never")
    listed, text = run("list")
    rows = {row["name"]: (row["role"], row["state"]) for row in listed["annotators"]}
    assert rows == {
        "ann": ("annotator", "valid"),
        "bob": ("annotator", "valid"),
        "lea": ("lead", "valid"),
    }
    assert listed["annotators"][2]["expires"] is None
    assert ann not in json.dumps(listed) + text
    run("revoke", "ann")
    with pytest.raises(EndedTokenError):
        verify(ann)
    assert verify(bob).name == "bob"
    renewed = run("renew", "ann", "--expires", "2w")[0]["annotators"][0]["token"]
    assert verify(renewed).name == "ann"
    lifetime = verify(renewed).expires_at - verify(renewed).created_at
    assert lifetime.days == 14
    with pytest.raises(TokenError):
        verify(ann)


def test_a_link_goes_to_stdout_for_the_shell(tmp_path, capsys):
    assert main(["annotators", "add", str(tmp_path), "ann"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("http://")
    assert captured.out.count("\n") == 1
    assert "work for 90d and are not shown again" in captured.err


@pytest.mark.parametrize("words", [("bob", "ann"), ("bob", "bob")])
def test_all_names_get_links_or_none(run, words):
    run("add", "ann")
    found, _ = run("add", *words, code=2)
    assert "already" in found["error"] or "twice" in found["error"]
    for action in ("renew", "revoke"):
        assert "there is no account 'bob'" in run(action, "ann", "bob", code=2)[0]["error"]
    assert [row["state"] for row in run("list")[0]["annotators"]] == ["valid"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("add",), "expects a name"),
        (("list", "ann"), "takes no names"),
        (("renew", "ann"), "nobody has an account yet; run: haystack annotators add"),
        (("list",), "nobody has an account yet"),
        (("add", "ann", "--expires", "soon"), "expected --expires 12h, 90d, 8w or never"),
        (("add", "ann", "--expires", "0d"), "expected --expires"),
        (("revoke", "ann", "--lead"), "--lead goes with add"),
        (("add", "ann", "--public-url", "x"), "expected a public URL"),
        (("add", " "), "expected a name of 1 to 100 printable characters"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(run, tmp_path, words, sentence):
    found, errors = run(*words, code=2)
    assert sentence in found["error"]
    assert sentence in errors
