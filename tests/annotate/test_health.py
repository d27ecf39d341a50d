"""What the service tells those who watch it."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi", reason="the annotation page needs FastAPI")

import sqlalchemy
from sqlalchemy.exc import OperationalError

from haystack.annotate.service.health import Watch
from haystack.annotate.store.schema import MIGRATIONS
from haystack.annotate.store.store import AnnotationStore
from haystack.errors import InputError

_ON_A_FULL_DISK = """
import resource, sys
from fastapi.testclient import TestClient
from haystack.annotate.service import health
from haystack.annotate.service.app import create_app
from haystack.annotate.store.store import AnnotationStore
health._KEPT_SECONDS = 0
with AnnotationStore(sys.argv[1]) as store:
    with TestClient(create_app(store, None, ()), base_url="http://127.0.0.1:8000") as client:
        before = client.get("/healthz")
        # Nothing can be written to a file any more, as on a disk without room.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        full = client.get("/healthz")
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        after = client.get("/healthz")
assert (before.status_code, full.status_code, after.status_code) == (200, 503, 200)
print(full.json()["detail"])
"""


def test_health_means_that_an_answer_could_be_stored(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", _ON_A_FULL_DISK, str(tmp_path / "annotations.db")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said = "answers cannot be stored now and wait in the browsers; the service's log says why"
    assert ran.stdout.strip() == said
    assert "no answer can be stored" in ran.stderr
    assert "disk" in ran.stderr


@pytest.mark.postgres
def test_a_server_that_takes_no_writes_is_not_healthy(postgres_database):
    with AnnotationStore(postgres_database) as store:
        assert Watch(store.database).version() == len(MIGRATIONS)
        url = sqlalchemy.make_url(postgres_database)
        with store.database.write() as connection:
            name = f'"{url.database}"'
            connection.exec_driver_sql(
                f"ALTER DATABASE {name} SET default_transaction_read_only = on"
            )
        store.close()  # its connections are made anew
        assert Watch(store.database).version() is None


class Unreachable:
    """A database that fails as often as it is told to, with a text that names a host."""

    def __init__(self):
        self.tries = 0
        self.error = None

    def check(self):
        self.tries += 1
        if self.error is not None:
            raise self.error
        return 3


def test_health_is_tried_rarely_and_says_nothing_of_hosts_and_users(caplog):
    database, seconds = Unreachable(), [0.0]
    watch = Watch(database, clock=lambda: seconds[0])
    secret = 'connection to server at "db.internal", user "kim" failed'
    failures = (OperationalError("SELECT 1", {}, Exception(secret)), InputError(secret))
    for number, failure in enumerate((None, *failures, None)):
        database.error = failure
        seconds[0] += 2
        for _ in range(5):
            assert watch.version() == (3 if failure is None else None)
        assert database.tries == number + 1
    assert [record.message for record in caplog.records] == [
        f"no answer can be stored: {secret}"
    ] * 2


def test_a_watcher_does_not_wait_for_another_whose_try_hangs():
    seconds, entered, go_on = [0.0], threading.Event(), threading.Event()

    class Hanging(Unreachable):
        def check(self):
            if self.tries:
                entered.set()
                assert go_on.wait(60)
            return super().check()

    watch = Watch(Hanging(), clock=lambda: seconds[0])
    assert watch.version() == 3
    seconds[0] = 5
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(watch.version)
        assert entered.wait(60)
        assert watch.version() == 3
        seconds[0] = 16
        assert watch.version() is None
        go_on.set()
        assert first.result(60) == 3
