"""Proposals, a store on SQLite and on PostgreSQL, and a workspace's pictures that are drawn."""

from __future__ import annotations

import io
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="the annotation store needs SQLAlchemy")

from haystack.annotate.records import Proposal
from haystack.annotate.simulate import SteppingClock
from haystack.annotate.store.store import AnnotationStore
from haystack.errors import ConflictError, InputError

sys.path.insert(0, str(Path(__file__).parent))  # page_actions

EATING, RIDING = 0, 1


def _proposal(image="1", subject=0, object_=1, predicate=EATING, rank=0, **changes):
    values = {"score": 1.0 - rank, "cluster": 0, "image_key": f"{image}.jpg"} | changes
    return Proposal(image, subject, object_, predicate, rank=rank, **values)


@pytest.fixture(scope="session")
def make_proposal():
    """One proposal; every field has a default."""
    return _proposal


@pytest.fixture(scope="session")
def make_queue():
    """``count`` proposals a predicate; image i shows persons 0 and 1 and pizza 2."""

    def make(count=6, predicates=(EATING, RIDING), images=3):
        pairs = ((0, 2), (1, 2), (0, 1), (1, 0), (2, 0), (2, 1))
        return [
            _proposal(str(rank % images), *pairs[rank // images], predicate=predicate, rank=rank)
            for predicate in predicates
            for rank in range(count)
        ]

    return make


def _postgres_binaries() -> Path | None:
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: p.parts[4])
    return found[-1].parent if found else None


@pytest.fixture(scope="session")
def postgres_server():
    """URL of a PostgreSQL server: the one that is named, or one of our own."""
    pytest.importorskip("psycopg", reason="PostgreSQL tests need the package psycopg")
    given = os.environ.get("HAYSTACK_POSTGRES_URL")
    if given:
        yield given
        return
    binaries = _postgres_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL: set HAYSTACK_POSTGRES_URL, or install the package postgresql")
    as_user: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="haystack-pg-"))
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root.
        if shutil.which("runuser") is None or "postgres" not in {u.pw_name for u in pwd.getpwall()}:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres to run as")
        as_user = ["runuser", "-u", "postgres", "--"]
        shutil.chown(folder, "postgres")

    def run(*command):
        subprocess.run(
            [*as_user, *map(str, command)],
            check=True,
            cwd="/",
            stdout=subprocess.DEVNULL,
            timeout=120,
        )

    data = folder / "data"
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
    control = (binaries / "pg_ctl", "-D", data, "-w")
    run(
        binaries / "initdb", "-D", data, "-U", "haystack", "--auth=trust", "--no-sync", "-E", "UTF8"
    )
    run(*control, "-o", options, "-l", folder / "log", "start")
    try:
        yield f"postgresql://haystack@/postgres?host={folder}"
    finally:
        run(*control, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_database(postgres_server):
    """URL of an empty database, dropped afterwards."""
    import sqlalchemy

    name = f"haystack_test_{uuid.uuid4().hex[:12]}"
    url = sqlalchemy.make_url(postgres_server).set(drivername="postgresql+psycopg")
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    yield url.set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def location(request, tmp_path):
    """Where an annotation database can be made."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres_database")
    return tmp_path / "annotations.db"


@pytest.fixture
def store(location):
    """An empty store on every kind of database, with a clock that can be repeated."""
    with AnnotationStore(location, clock=SteppingClock()) as opened:
        yield opened


@pytest.fixture
def sqlite_store(tmp_path):
    """An empty store in a file."""
    with AnnotationStore(tmp_path / "annotations.db", clock=SteppingClock()) as opened:
        yield opened


class DrawnMedia:
    """A workspace whose pictures are drawn: coloured ground, two ellipses per pair."""

    size = (640, 420)

    def __init__(self, names=("person", "person", "pizza")):
        self.names = names
        self.broken: set[str] = set()

    def _box(self, segment):
        left = 60 + 180 * segment
        return (left, 90 + 40 * (segment % 2), left + 160, 330)

    def image(self, image_key):
        from PIL import Image, ImageDraw

        from haystack.errors import InputError

        if image_key in self.broken:
            raise InputError("the picture is damaged", record=image_key)
        tone = 60 + 37 * int(image_key.split(".")[0] or 0) % 120
        picture = Image.new("RGB", self.size, (tone, 110, 150 - tone // 2))
        draw = ImageDraw.Draw(picture)
        for segment in range(3):
            draw.ellipse(self._box(segment), fill=(200, 60 * segment + 60, tone))
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=85)
        return stream.getvalue(), "image/jpeg"

    def overlay(self, image_key, subject, object):
        from PIL import Image, ImageDraw

        from haystack.annotate.service.media import OVERLAY_PALETTE

        mask = Image.new("P", self.size, 0)
        mask.putpalette([channel for colour in OVERLAY_PALETTE for channel in colour[:3]])
        draw = ImageDraw.Draw(mask)
        draw.ellipse(self._box(subject), fill=1)
        draw.ellipse(self._box(object), fill=2)
        stream = io.BytesIO()
        mask.save(stream, "PNG", transparency=0)
        return stream.getvalue()

    def caption(self, proposal):
        from haystack.annotate.service.media import Caption

        return Caption(self.names[proposal.subject], self.names[proposal.object])


@pytest.fixture
def media():
    """Pictures that are drawn."""
    return DrawnMedia()


@dataclass(frozen=True)
class DrawnCluster:
    id: int
    name: str
    size: int
    included: bool = True


@dataclass(frozen=True)
class DrawnSample:
    nearest: tuple[str, ...]
    drawn: tuple[str, ...]


@dataclass(frozen=True)
class DrawnChoice:
    clustering: str
    clusters: list[DrawnCluster]
    proposals: list[int] | None = None
    candidates: list[int] | None = None
    to_run: list[str] = field(default_factory=list)


class DrawnClusters:
    """Five clusters; the second has a name, the last is empty."""

    def __init__(self):
        names = ("cluster-00", "<b>logos</b>", "cluster-02", "cluster-03", "cluster-04")
        sizes = (1200, 300, 40, 3, 0)
        self.state = DrawnChoice(
            "abc",
            [
                DrawnCluster(number, name, size)
                for number, (name, size) in enumerate(zip(names, sizes, strict=True))
            ],
        )
        self.calls = []
        self.thumbnails = 0
        self.fails = None

    def choice(self):
        return self.state

    def include(self, cluster, included, clustering):
        self.calls.append((cluster, included))
        if self.fails is not None:
            raise self.fails
        self._check(cluster, clustering)
        clusters = list(self.state.clusters)
        clusters[cluster] = replace(clusters[cluster], included=included)
        self.state = replace(self.state, clusters=clusters)
        return self.state

    def sample(self, cluster, clustering):
        self._check(cluster, clustering)
        few = min(60, self.state.clusters[cluster].size)
        keys = [f"{cluster}/{number}.jpg" for number in range(2 * few)]
        return DrawnSample(tuple(keys[:few]), tuple(keys[few:] if few == 60 else keys[:few]))

    def thumbnail(self, image_key):
        from PIL import Image, ImageDraw

        self.thumbnails += 1
        if not image_key.partition("/")[0].isdigit():
            raise InputError("this image is not in the source", record=image_key)
        cluster, number = (int(part) for part in image_key.removesuffix(".jpg").split("/"))
        if number == 2:
            raise InputError("broken or truncated image", path=image_key)
        tone = (60 + 47 * cluster) % 256
        picture = Image.new("RGB", (160 + 20 * (number % 4), 120), (tone, 90, 200 - tone % 150))
        ImageDraw.Draw(picture).ellipse((20, 20, 60 + number, 100), fill=(230, 220, 40 * cluster))
        stream = io.BytesIO()
        picture.save(stream, "JPEG")
        return stream.getvalue()

    def _check(self, cluster, clustering):
        if clustering != self.state.clustering:
            raise ConflictError("the images were clustered anew meanwhile; look at the new ones")
        if cluster >= len(self.state.clusters):
            raise InputError(f"expected a cluster in 0..4, got {cluster}")


@pytest.fixture
def clusters():
    """Clusters whose pictures are drawn."""
    return DrawnClusters()


@dataclass(frozen=True)
class DrawnExample:
    id: str
    image_id: str
    subject: int
    object: int
    subject_name: str
    object_name: str
    picture: bytes


class DrawnExamples:
    """Two examples of eating and of riding, none of playing."""

    def __init__(self):
        self._examples = {
            predicate: [self._draw(predicate, number) for number in range(2)]
            for predicate in (EATING, RIDING)
        }

    def predicates(self):
        return list(self._examples)

    def of(self, predicate):
        return self._examples.get(predicate, [])

    def _draw(self, predicate, number):
        from PIL import Image, ImageDraw

        picture = Image.new("RGB", (320, 240), (60 + 60 * predicate, 90, 70 + 50 * number))
        draw = ImageDraw.Draw(picture)
        draw.ellipse((30, 50, 140, 200), outline=(86, 180, 233), width=4)
        draw.ellipse((180, 60, 290, 190), outline=(230, 159, 0), width=4)
        stream = io.BytesIO()
        picture.save(stream, "JPEG")
        return DrawnExample(
            f"e{predicate}{number}", f"i{number}", 0, 2, "person", "<b>pizza</b>", stream.getvalue()
        )


@pytest.fixture
def examples():
    """Examples that are drawn."""
    return DrawnExamples()


class RunningService:
    """The real service in a thread; can be stopped and started again on the same port.

    ``store``, ``media`` and ``options`` (of ``create_app``) are read at every start.
    """

    def __init__(self, store, media, names=("eating", "riding"), **options):
        self.store, self.media, self.names = store, media, names
        self.options = {"annotator": "ann"} | options
        self._port = 0
        self._server = None

    def start(self):
        import uvicorn

        from haystack.annotate.service.app import create_app

        app = create_app(self.store, self.media, self.names, **self.options)
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen()
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]})
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def stop(self):
        if self._server is not None:
            self._server.should_exit = True
            self._thread.join(20)
            self._server = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self._port}/"


@pytest.fixture
def run_service():
    """A function of the arguments of :class:`RunningService` that starts one."""
    pytest.importorskip("fastapi", reason="the annotation page needs FastAPI")
    started = []

    def run(*args, **options):
        service = RunningService(*args, **options)
        service.start()
        started.append(service)
        return service

    yield run
    for service in started:
        service.stop()


@pytest.fixture
def expect():
    """Playwright's assertions that wait."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="browser tests need the package playwright"
    )
    return api.expect


@pytest.fixture(scope="module")  # while it is there, asyncio.run is refused in this thread
def chromium():
    """Playwright's browser type, and the options that launch the system's Chromium with it."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="browser tests need the package playwright"
    )
    path = os.environ.get("HAYSTACK_CHROMIUM") or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if path is None:
        pytest.skip("no browser: install the system package chromium, or set HAYSTACK_CHROMIUM")
    api.expect.set_options(timeout=30_000)  # of a machine that does other work as well
    with api.sync_playwright() as playwright:
        options = {"executable_path": path, "args": ["--no-sandbox", "--disable-gpu"]}
        yield playwright.chromium, options


@pytest.fixture(scope="module")
def browser(chromium):
    """The system's Chromium without a window."""
    kind, options = chromium
    launched = kind.launch(**options)
    yield launched
    launched.close()


@pytest.fixture
def context(browser):
    """A browser profile of its own."""
    opened = browser.new_context(viewport={"width": 1200, "height": 760})
    yield opened
    opened.close()


@pytest.fixture
def running(run_service, sqlite_store, make_queue, media):
    """A service with twelve questions about each of two predicates."""
    sqlite_store.load_proposals(make_queue(count=12), round=0)
    return run_service(sqlite_store, media)


@pytest.fixture
def page(context, running):
    """The page with its first picture on screen; scripts must not have failed at the end."""
    from page_actions import visit

    opened = context.new_page()
    opened.set_default_timeout(15_000)
    faults = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    visit(opened, running)
    yield opened
    opened.close()
    assert faults == []
