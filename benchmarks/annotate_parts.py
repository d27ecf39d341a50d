"""Parts of the annotation benchmark: human pace, flat out, and the server's CPU for a picture."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from annotate_server import PREDICATES
from measure import Row, at_most
from peers import Peers
from PIL import Image

_THINK_SECONDS = 0.7
_WARM_UP = 3
"""Answers of each annotator that are not counted: connections, caches and plans are made then."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Args:
        proposals: in the queue, of 56 predicates.
        annotators: at human pace, 0.7 s from a question to its answer on average.
        seconds: how long they work.
        clients: flat out, each answers as soon as the next question is there.
        answers: of all clients together.
        seconds_flat_out: after which the clients stop, whether or not all answers are given.
        height, width: of the picture.
        views: of pictures after the first.
    """

    proposals: int = 500_000
    annotators: int = 20
    seconds: int = 60
    clients: int = 8
    answers: int = 100_000
    seconds_flat_out: int = 900
    height: int = 1500
    width: int = 2250
    views: int = 50


class _Server:
    """A service that runs; see ``annotate_server.py``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError("the service did not start; its error is above")
        self.address = urlsplit(address)

    def cpu_seconds(self) -> float:
        """CPU time of the service so far, all its threads together."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("cpu\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


@contextmanager
def _service(database: str, *arguments: str) -> Iterator[_Server]:
    command = [sys.executable, str(Path(__file__).with_name("annotate_server.py")), database]
    process = subprocess.Popen(
        [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield _Server(process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


class _Annotator:
    """Answers what it is asked about one predicate, over one connection."""

    def __init__(self, server: _Server, name: str, predicate: int) -> None:
        self._connection = http.client.HTTPConnection(
            server.address.hostname or "", server.address.port, timeout=120
        )
        self._host = server.address.netloc
        self.name, self.predicate = name, predicate
        self.latencies: list[float] = []
        self.answered: list[str] = []
        self.questions: list[dict[str, str]] = []

    def request(self, method: str, path: str, body: object = None) -> bytes:
        """One request; a refusal is an error."""
        headers = {"Content-Type": "application/json", "X-Annotator": self.name}
        content = None if body is None else json.dumps(body)
        self._connection.request(method, path, content, headers)
        response = self._connection.getresponse()
        said = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {said[:200]!r}")
        return said

    def start(self) -> None:
        """Ask for the first questions."""
        said = self.request("GET", f"/api/next?predicate={self.predicate}")
        self.questions = json.loads(said)["questions"]

    def answer(self) -> bool:
        """Answer and get the next; False when nothing is left."""
        if not self.questions:
            return False
        asked = self.questions[0]["id"]
        verdict = "correct" if random.random() < 0.09 else "incorrect"
        body = {"proposal_id": asked, "verdict": verdict, "key": f"{self.name}:{asked}"}
        begin = time.perf_counter()
        said = self.request("POST", "/api/answer", body | {"dwell_ms": 700})
        self.latencies.append(time.perf_counter() - begin)
        self.answered.append(asked)
        self.questions = json.loads(said)["questions"]
        return True


def _databases(folder: Path) -> Iterator[tuple[str, str]]:
    yield "SQLite", str(folder / "annotations.db")
    if url := os.environ.get("HAYSTACK_POSTGRES_URL"):
        _empty(url)
        yield "PostgreSQL", url


def _empty(url: str) -> None:
    import sqlalchemy

    from haystack.annotate.store.schema import tables, views

    engine = sqlalchemy.create_engine(sqlalchemy.make_url(url).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        for name in views.tables:
            connection.execute(sqlalchemy.text(f"DROP VIEW IF EXISTS {name} CASCADE"))
        for name in tables.tables:
            connection.execute(sqlalchemy.text(f"DROP TABLE IF EXISTS {name} CASCADE"))
    engine.dispose()


def _together(annotators: list[_Annotator], work) -> None:
    failures: list[BaseException] = []

    def run(annotator: _Annotator) -> None:
        try:
            work(annotator)
        except BaseException as error:  # shown by the main thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(annotator,)) for annotator in annotators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def pace(sizes: Sizes, _: Peers, folder: Path) -> list[Row]:
    """Annotators at human pace, five at each predicate, as a team would work."""
    rows = []
    for name, database in _databases(folder):
        with _service(database, str(sizes.proposals)) as server:
            team = [_Annotator(server, f"a{n}", n // 5) for n in range(sizes.annotators)]
            stop = time.perf_counter() + sizes.seconds

            def work(annotator: _Annotator, stop: float = stop) -> None:
                time.sleep(random.uniform(0, _THINK_SECONDS))
                annotator.start()
                while time.perf_counter() < stop and annotator.answer():
                    time.sleep(random.uniform(0.5, 1.5) * _THINK_SECONDS)

            before = server.cpu_seconds()
            _together(team, work)
            spent = server.cpu_seconds() - before
        rows += _latency_rows("pace", name, team, spent, sizes.annotators, with_goals=True)
    return rows


def closed(sizes: Sizes, _: Peers, folder: Path) -> list[Row]:
    """Clients that never pause, all at the same predicate until it is empty, then the next."""
    rows = []
    for name, database in _databases(folder):
        left = threading.Semaphore(sizes.answers)
        with _service(database, str(sizes.proposals)) as server:
            clients = [_Annotator(server, f"c{n}", 0) for n in range(sizes.clients)]
            begin = time.perf_counter()
            stop = begin + sizes.seconds_flat_out

            def work(client: _Annotator, left=left, stop: float = stop) -> None:
                client.start()
                while time.perf_counter() < stop and left.acquire(blocking=False):
                    while not client.answer():
                        client.predicate += 1
                        if client.predicate == PREDICATES:
                            return
                        client.start()

            before = server.cpu_seconds()
            _together(clients, work)
            spent = server.cpu_seconds() - before
            seconds = time.perf_counter() - begin
        rows += _latency_rows("closed", name, clients, spent, sizes.clients, with_goals=False)
        given = [proposal for client in clients for proposal in client.answered]
        note = f"{len(given)} answers in {seconds:.0f} s"
        twice = len(given) - len(set(given))
        rows.append(
            Row("closed", f"{name}: answers a second", len(given) / seconds, "/s", note=note)
        )
        rows.append(
            Row(
                "closed",
                f"{name}: questions answered twice",
                twice,
                "",
                goal="0",
                met=twice == 0,
                note=note,
            )
        )
    return rows


def _latency_rows(
    part: str, name: str, team: list[_Annotator], spent: float, count: int, *, with_goals: bool
) -> list[Row]:
    counted = [latency for one in team for latency in one.latencies[_WARM_UP:]]
    answers = sum(len(one.latencies) for one in team)
    note = f"{len(counted)} answers of {count}, load {os.getloadavg()[0]:.1f}"
    goals = {95: 30.0, 99: 80.0} if with_goals and name == "SQLite" else {}
    rows = []
    for share in (50, 95, 99):
        found = 1e3 * float(np.percentile(counted, share))
        what = f"{name}: answer and next, p{share}"
        if share in goals:
            rows.append(at_most(part, what, found, "ms", goals[share], note=note))
        else:
            rows.append(Row(part, what, found, "ms", note=note))
    rows.append(
        Row(part, f"{name}: CPU of the service an answer", 1e3 * spent / answers, "ms", note=note)
    )
    return rows


def picture(sizes: Sizes, _: Peers, folder: Path) -> list[Row]:
    """One proposal after the first of its image: picture, masks, answer and next question."""
    workspace = _workspace(sizes, folder)
    with _service(str(folder / "annotations.db"), "0", str(workspace)) as server:
        annotator = _Annotator(server, "ann", 0)
        annotator.start()

        def view() -> None:
            asked = annotator.questions[0]
            for url in ("image_url", "overlay_url"):
                annotator.request("GET", asked[url])
            annotator.answer()

        def next_one() -> None:
            while not annotator.questions:
                annotator.predicate += 1
                annotator.start()

        first = server.cpu_seconds()
        for _number in range(_WARM_UP):
            view()
            next_one()
        before = server.cpu_seconds()
        for _number in range(sizes.views):
            view()
            next_one()
        spent = 1e3 * (server.cpu_seconds() - before) / sizes.views
    what = f"CPU of the service a proposal, {sizes.height} x {sizes.width}"
    note = f"first {_WARM_UP} views {1e3 * (before - first) / _WARM_UP:.1f} ms each"
    return [at_most("picture", what, spent, "ms", 15.0, note=note)]


def _workspace(sizes: Sizes, folder: Path) -> Path:
    """A workspace of one photograph-like picture with four segments, by the stages themselves."""
    from haystack.cli import main

    random_ = np.random.default_rng(0)
    small = random_.integers(0, 256, (sizes.height // 20 + 1, sizes.width // 20 + 1, 3), np.uint8)
    shown = Image.fromarray(small).resize((sizes.width, sizes.height), Image.Resampling.BICUBIC)
    (folder / "images").mkdir()
    shown.save(folder / "images" / "1.jpg", quality=90)
    ids = np.zeros((sizes.height, sizes.width), np.uint8)
    rows, columns = np.mgrid[: sizes.height, : sizes.width]
    for number, (top, left) in enumerate(((0.3, 0.3), (0.3, 0.7), (0.7, 0.3), (0.7, 0.7)), start=1):
        distance = (rows / sizes.height - top) ** 2 + (columns / sizes.width - left) ** 2
        ids[distance < 0.03 + 0.004 * np.sin(columns / 9)] = number
    png = np.zeros((*ids.shape, 3), np.uint8)
    png[..., 0] = ids
    Image.fromarray(png).save(folder / "1.png")
    record = {
        "file_name": "images/1.jpg",
        "pan_seg_file_name": "1.png",
        "image_id": "1",
        "height": sizes.height,
        "width": sizes.width,
        "segments_info": [
            {"id": n, "category_id": 0, "isthing": 1, "area": int((ids == n).sum())}
            for n in range(1, 5)
        ],
        "annotations": [{"bbox": [0, 0, 9, 9], "category_id": 0, "bbox_mode": 0} for _ in range(4)],
        "relations": [],
    }
    from haystack.vocabulary import psg_vocabulary

    names = psg_vocabulary()
    content = {
        "data": [record],
        "thing_classes": list(names.thing_classes),
        "stuff_classes": list(names.stuff_classes),
        "predicate_classes": list(names.predicate_classes),
        "test_image_ids": [],
    }
    (folder / "annotation.json").write_text(json.dumps(content))
    settings = (
        f"source.images={folder / 'images'}",
        "segment.kind=precomputed",
        f"segment.annotations={folder / 'annotation.json'}",
    )
    if main(["segment", str(folder / "work"), *settings]) != 0:
        raise RuntimeError("the picture could not be segmented")
    return folder / "work"


PARTS = {"pace": pace, "closed": closed, "picture": picture}
