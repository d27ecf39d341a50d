"""Accounts of annotators: tokens, roles, and how they end. On SQLite and on PostgreSQL."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
import sqlalchemy

from haystack.annotate.store.accounts import Accounts, EndedTokenError, TokenError
from haystack.errors import InputError

START = datetime(2030, 1, 1, tzinfo=timezone.utc)
DAY = timedelta(days=1)


class Clock:
    def __init__(self):
        self.now = START

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def accounts(store, clock):
    return Accounts(store.database, clock=clock)


def test_a_token_tells_whose_it_is(accounts):
    ann, bob = accounts.add("ann"), accounts.add("bob", "lead")
    assert ann != bob
    assert (accounts.verify(ann).name, accounts.verify(ann).role) == ("ann", "annotator")
    assert (accounts.verify(bob).name, accounts.verify(bob).role) == ("bob", "lead")
    assert [account.name for account in accounts.all()] == ["ann", "bob"]


def test_tokens_are_256_random_bits_and_only_their_hashes_are_stored(accounts, store):
    tokens = [accounts.add(f"n{i}") for i in range(20)]
    assert len({token[:8] for token in tokens}) == 20
    assert all(len(token) == 43 for token in tokens)  # 32 bytes, base64
    with store.database.read() as connection:
        stored = repr(connection.execute(sqlalchemy.text("SELECT * FROM annotators")).all())
    assert not any(token in stored for token in tokens)


@pytest.mark.parametrize(
    "token", ["", "x" * 43, "' OR 1=1 --", "a\0b", "\ud800", "é" * 100, "x" * 100_000]
)
def test_a_token_of_nobody_is_refused(accounts, token):
    accounts.add("ann")
    with pytest.raises(TokenError, match="not known here") as caught:
        accounts.verify(token)
    assert not isinstance(caught.value, EndedTokenError)


def test_a_token_or_a_hash_that_resembles_is_refused(accounts, store):
    token = accounts.add("ann")
    with store.database.read() as connection:
        digest = connection.execute(sqlalchemy.text("SELECT token_hash FROM annotators")).scalar()
    for other in (token.swapcase(), token[:-1], token + " ", digest):
        with pytest.raises(TokenError):
            accounts.verify(other)


def test_a_token_expires_at_its_time(accounts, clock):
    token = accounts.add("ann", lifetime=DAY)
    for_ever = accounts.add("bob")
    clock.now = START + DAY - timedelta(microseconds=1)
    assert accounts.verify(token).name == "ann"
    clock.now = START + DAY
    with pytest.raises(EndedTokenError, match="the token of 'ann' has expired"):
        accounts.verify(token)
    assert accounts.verify(for_ever).state(START + 10_000 * DAY) == "valid"


def test_a_clock_that_jumps_back_makes_a_token_valid_again(accounts, clock):
    token = accounts.add("ann", lifetime=DAY)
    clock.now = START + 2 * DAY
    with pytest.raises(EndedTokenError):
        accounts.verify(token)
    clock.now = START - 2 * DAY
    assert accounts.verify(token).name == "ann"


def test_a_revoked_token_is_refused_until_the_account_is_renewed(accounts):
    old = accounts.add("ann", "lead")
    accounts.revoke("ann")
    with pytest.raises(EndedTokenError, match="the token of 'ann' was revoked"):
        accounts.verify(old)
    new = accounts.renew("ann", DAY)
    assert accounts.verify(new).role == "lead"
    assert accounts.all()[0].expires_at == START + DAY
    with pytest.raises(TokenError, match="not known here"):
        accounts.verify(old)


def test_whether_anybody_could_log_in(accounts, clock):
    assert not accounts.any_valid()
    accounts.add("ann", lifetime=DAY)
    assert accounts.any_valid()
    clock.now = START + DAY
    assert not accounts.any_valid()
    accounts.add("bob")
    assert accounts.any_valid()
    accounts.revoke("bob")
    assert not accounts.any_valid()


def test_a_name_is_taken_once(accounts):
    token = accounts.add("ann")
    with pytest.raises(InputError, match="there is an account 'ann' already"):
        accounts.add("ann")
    assert accounts.verify(token).name == "ann"


@pytest.mark.parametrize("name", ["", " ", " ann", "ann ", "a\0b", "a\nb", "\ud800", "x" * 101])
def test_a_name_that_cannot_be_one_is_refused(accounts, name):
    with pytest.raises(InputError, match="expected a name of 1 to 100 printable characters"):
        accounts.add(name)
    assert accounts.all() == ()


@pytest.mark.parametrize("name", ["'; DROP TABLE annotators; --", "<b>Ann</b>", "Ørsted 田中 🙂"])
def test_any_printable_name_is_only_a_name(accounts, name):
    token = accounts.add(name)
    assert accounts.verify(token).name == name
    accounts.revoke(name)
    assert len(accounts.all()) == 1


@pytest.mark.parametrize("change", ["renew", "revoke"])
@pytest.mark.parametrize("name", ["bob", "a\0b", "' OR '1'='1"])
def test_there_must_be_such_an_account(accounts, change, name):
    token = accounts.add("ann")
    with pytest.raises(InputError, match=r"there is no account .*; there are: ann"):
        getattr(accounts, change)(name)
    assert accounts.verify(token).name == "ann"


@pytest.mark.parametrize("lifetime", [timedelta(0), -DAY, timedelta.max])
def test_a_lifetime_that_cannot_be_one_is_refused(accounts, lifetime):
    with pytest.raises(InputError):
        accounts.add("ann", lifetime=lifetime)
    assert accounts.all() == ()
