"""The real service is killed and ended under load: what it acknowledged is there, once."""

from __future__ import annotations

import http.client
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid

import pytest
import sqlalchemy

pytest.importorskip("fastapi", reason="the annotation page needs FastAPI")

from haystack.annotate.store.accounts import Accounts
from haystack.annotate.store.store import AnnotationStore

_SERVICE = """
import sys, time
from haystack.annotate import AnnotationStore, Caption, Site, create_app, serve
class Media:
    def caption(self, proposal): return Caption("person", "pizza")
    def image(self, key): time.sleep(1.5); return b"x" * 500_000, "image/jpeg"
location, port = sys.argv[1], int(sys.argv[2])
site = Site("127.0.0.1", f"http://127.0.0.1:{port}")
with AnnotationStore(location) as store:
    serve(create_app(store, Media(), ("eating", "riding"), site=site), port)
print("ended cleanly", flush=True)
"""
VERDICTS = ("correct", "incorrect", "no_relation", "skip")


class Service:
    """The service in a process of its own, always on the same port."""

    def __init__(self, location):
        self.location = str(location)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVICE, self.location, str(self.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        announced = self.process.stderr.readline()
        assert re.search(r"http://127\.0\.0\.1:\d+/", announced), announced

    def end(self, number):
        """Send a signal; gives the exit code and what was written since the start."""
        self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=30)
        return self.process.returncode, output, errors


class Annotator(threading.Thread):
    """Answers as fast as it can, as the page does: the same request until it is acknowledged."""

    def __init__(self, port, name, token):
        super().__init__(name=name)
        self.port, self.token = port, token
        self.acknowledged = {}
        self.undone = set()
        self.broken = []
        self.enough = threading.Event()
        self._connection = None
        self._random = random.Random(name)

    def run(self):
        waiting = None
        while waiting is not None or not self.enough.is_set():
            try:
                if waiting is None:
                    waiting = self._next_operation()
                if waiting is not None:
                    path, body = waiting
                    reply = self._ask("POST", path, body)
                    if path == "/api/answer":
                        self.acknowledged[body["key"]] = body
                    elif reply["undone"] is not None:
                        self.undone.add(body["key"])
                    waiting = None
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, http.client.IncompleteRead):
                    self.broken.append(error)
                self._connection = None
                time.sleep(0.02)

    def _next_operation(self):
        key = uuid.uuid4().hex
        if self._random.random() < 0.1:
            return "/api/undo", {"key": key}
        predicate = self._random.randrange(2)
        questions = self._ask("GET", f"/api/next?predicate={predicate}")["questions"]
        if not questions:
            return None
        verdict = self._random.choice(VERDICTS)
        return "/api/answer", {"proposal_id": questions[0]["id"], "verdict": verdict, "key": key}

    def _ask(self, method, path, body=None):
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body)
        self._connection.request(method, path, content, headers)
        response = self._connection.getresponse()
        reply = json.loads(response.read())
        assert response.status == 200, (response.status, reply)
        return reply


class Campaign:
    """A service, annotators at work, and what the database holds."""

    def __init__(self, location, queue):
        with AnnotationStore(location) as store:
            store.load_proposals(queue, round=0)
            accounts = Accounts(store.database)
            tokens = {name: accounts.add(name) for name in ("ann", "bob", "cid")}
        self.location = location
        self.service = Service(location)
        self.annotators = [Annotator(self.service.port, *who) for who in tokens.items()]

    def work(self):
        self.service.start()
        for annotator in self.annotators:
            annotator.start()

    def acknowledged(self):
        return {key: a.name for a in self.annotators for key in list(a.acknowledged)}

    def events(self):
        with AnnotationStore(self.location) as store, store.database.read() as connection:
            query = sqlalchemy.text("SELECT key, proposal_id, annotator, verdict FROM events")
            return {row.key: row for row in connection.execute(query)}

    def wait_for(self, count):
        """Until so many more answers are acknowledged."""
        aim, end = len(self.acknowledged()) + count, time.monotonic() + 60
        while len(self.acknowledged()) < aim:
            assert time.monotonic() < end, "nothing is acknowledged any more"
            assert all(a.is_alive() for a in self.annotators), "an annotator was refused"
            time.sleep(0.005)

    def finish(self):
        """Everything that waits is acknowledged."""
        for annotator in self.annotators:
            annotator.enough.set()
        for annotator in self.annotators:
            annotator.join(60)
            assert not annotator.is_alive()

    def close(self):
        self.service.process.kill()
        self.service.process.communicate()
        for annotator in self.annotators:
            annotator.enough.set()


@pytest.fixture
def campaign(location, make_queue):
    started = Campaign(location, make_queue(count=1800, images=300))
    yield started
    started.close()


def kill_under_load(campaign, kills):
    campaign.work()
    chance = random.Random(kills)
    for _ in range(kills):
        campaign.wait_for(chance.randrange(5, 60))
        campaign.service.end(signal.SIGKILL)
        acknowledged = campaign.acknowledged()
        assert acknowledged.keys() <= campaign.events().keys(), "an acknowledged answer is missing"
        campaign.service.start()
    campaign.wait_for(10)
    campaign.finish()

    events = campaign.events()
    undos = set().union(*(annotator.undone for annotator in campaign.annotators))
    assert events.keys() == campaign.acknowledged().keys() | undos
    for annotator in campaign.annotators:
        for key, body in annotator.acknowledged.items():
            event = events[key]
            assert (event.proposal_id, event.annotator, event.verdict) == (
                body["proposal_id"],
                annotator.name,
                body["verdict"],
            )
    code, output, _ = campaign.service.end(signal.SIGTERM)
    assert (code, output) == (0, "ended cleanly\n")


def test_killed_under_load_it_keeps_what_it_acknowledged(campaign):
    kill_under_load(campaign, kills=3)


@pytest.mark.slow
def test_killed_many_times_it_keeps_what_it_acknowledged(campaign):
    kill_under_load(campaign, kills=20)


def test_ended_under_load_it_finishes_what_is_under_way(campaign):
    campaign.work()
    campaign.wait_for(30)
    slow = http.client.HTTPConnection("127.0.0.1", campaign.service.port, timeout=20)
    token = campaign.annotators[0].token
    slow.request("GET", "/media/image?key=0.jpg", headers={"Authorization": f"Bearer {token}"})
    time.sleep(0.5)
    code, output, errors = campaign.service.end(signal.SIGTERM)
    assert (code, output, errors) == (0, "ended cleanly\n", "")
    response = slow.getresponse()
    assert (response.status, len(response.read())) == (200, 500_000)
    assert [annotator.broken for annotator in campaign.annotators] == [[], [], []]
    assert campaign.acknowledged().keys() <= campaign.events().keys()
    campaign.service.start()
    campaign.finish()
    assert campaign.acknowledged().keys() <= campaign.events().keys()
