"""The part of annotate.py about pictures: what a proposal costs, and how soon it is on screen."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from measure import Row, at_most
from peers import Peers
from PIL import Image

from haystack import files
from haystack.annotate.records import Proposal
from haystack.annotate.service.app import create_app
from haystack.annotate.service.media import Caption
from haystack.annotate.store.store import AnnotationStore
from haystack.executors import LocalExecutor
from haystack.io.panoptic_png import segment_geometry
from haystack.pipeline.jobs.segment import SegmentJob
from haystack.pipeline.media import WorkspaceMedia
from haystack.pipeline.segmenters.base import Segmentation
from haystack.pipeline.workspace import Workspace
from haystack.scene_graph import Segment


@dataclass(frozen=True)
class Sizes:
    """The picture that is asked about.

    Args:
        media_height, media_width: in pixels.
        media_segments: of the picture.
        media_views: later views that are timed together.
        media_repeat: the fastest of so many runs counts.
        media_answers: keys that are pressed in a browser, one every half second.
    """

    media_height: int = 1500
    media_width: int = 2250
    media_segments: int = 16
    media_views: int = 20
    media_repeat: int = 5
    media_answers: int = 40


def media(sizes: Sizes, _: Peers, scratch: Path) -> list[Row]:
    """CPU time of both requests of a proposal, from request to last byte, without a client.

    Later proposals are about the same picture and other pairs of segments, then the same pairs.
    """
    workspace = _workspace(sizes, scratch)
    pairs = [
        (one, other)
        for one in range(sizes.media_segments)
        for other in range(sizes.media_segments)
        if one != other
    ][: sizes.media_views + 1]
    size = f"{sizes.media_height}x{sizes.media_width} proposal"
    cold, others, again = [], [], []
    with AnnotationStore(scratch / "annotations.db") as store:
        proposals = [
            Proposal("1", *pair, 0, _KEY, score=0.0, cluster=0, rank=rank)
            for rank, pair in enumerate(pairs)
        ]
        store.load_proposals(proposals, round=0)
        for _run in range(sizes.media_repeat):
            app = create_app(store, _Media(workspace), ["holding"], media_version="1")
            asyncio.run(_get(app, "/healthz"))  # the application's own beginning does not count
            cold.append(_spent(app, proposals[:1]))
            others.append(_spent(app, proposals[1:]) / len(proposals[1:]))
            again.append(_spent(app, proposals[1:]) / len(proposals[1:]))
        sent = [asyncio.run(_get(app, url)) for url in _urls(proposals[0])]
    note = f"{sent[0] / 1e3:.0f} kB of picture, {sent[1] / 1e3:.1f} kB of overlay"
    return [
        Row("media", f"{size}, first view of the picture", 1e3 * min(cold), "ms", note=note),
        at_most("media", f"{size}, the picture was seen", 1e3 * min(others), "ms", 15),
        at_most("media", f"{size}, the proposal was seen", 1e3 * min(again), "ms", 15),
    ]


def next_picture(sizes: Sizes, _: Peers, scratch: Path) -> list[Row]:
    """Wall time from a key to the frame with the next picture, in a browser without a window.

    Needs Playwright and Chromium (``HAYSTACK_CHROMIUM``, or on the path); no rows without them.
    """
    chromium = os.environ.get("HAYSTACK_CHROMIUM") or shutil.which("chromium")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        print("page: not measured, there is no chromium or no playwright", file=sys.stderr)
        return []
    from playwright.sync_api import sync_playwright

    workspace = _workspace(sizes, scratch)
    count = sizes.media_segments
    pairs = [(one, (one + step) % count) for step in range(1, count) for one in range(count)]
    with AnnotationStore(scratch / "answers.db") as store:
        store.load_proposals(
            [
                Proposal("1", *pair, 0, _KEY, score=0.0, cluster=0, rank=rank)
                for rank, pair in enumerate(pairs)
            ],
            round=0,
        )
        app = create_app(store, _Media(workspace), ["holding"], media_version="1")
        with _served(app) as address, sync_playwright() as playwright:
            arguments = ["--no-sandbox", "--disable-gpu"]
            browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
            page = browser.new_page(viewport={"width": 1366, "height": 768})
            page.goto(address)
            page.wait_for_timeout(3_000)
            page.evaluate(
                """() => {
                  window.taken = [];
                  new PerformanceObserver((list) => taken.push(
                    ...list.getEntries().map((entry) => entry.duration),
                  )).observe({ type: 'measure' });
                }"""
            )
            for _number in range(min(sizes.media_answers, len(pairs) - 1)):
                page.keyboard.press("x")
                page.wait_for_timeout(500)
            taken = sorted(page.evaluate("taken"))
            browser.close()
    what = f"key to next picture, {sizes.media_height}x{sizes.media_width}"
    note = f"{len(taken)} answers, load {os.getloadavg()[0]:.1f}, drawn without a graphics card"
    rows = {"median": taken[len(taken) // 2], "p95": taken[int(0.95 * len(taken))]}
    return [
        at_most("page", f"{what}, {name}", took, "ms", 100, note=note)
        for name, took in rows.items()
    ]


@contextmanager
def _served(app: Any) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()


_KEY = "picture.jpg"


class _Media(WorkspaceMedia):
    def caption(self, proposal: Proposal) -> Caption:
        return Caption(*self.class_names(proposal.image_key, proposal.subject, proposal.object))


class _Blobs:
    """Segments with wavy borders, about as many turns as those of segmentation models."""

    def __init__(self, sizes: Sizes) -> None:
        rows, columns = np.mgrid[: sizes.media_height, : sizes.media_width].astype(np.float32)
        angle = np.arctan2(rows - sizes.media_height / 2, columns - sizes.media_width / 2)
        wave = 0.05 * np.sin(rows / 17) * np.cos(columns / 23) + 0.5 + angle / (2 * np.pi)
        number = np.clip(wave * sizes.media_segments, 0, sizes.media_segments - 1).astype(np.int32)
        self.ids = 1 + 70_001 * number

    def fingerprint(self) -> dict[str, Any]:
        return {"segmenter": "blobs"}

    def segment(self, image_key: str, content: bytes) -> Segmentation:
        segments = tuple(
            Segment(int(key), 0, int(area), tuple(map(float, box)))
            for key, area, box in zip(*segment_geometry(self.ids), strict=True)
        )
        return Segmentation("1", self.ids, segments)


def _workspace(sizes: Sizes, scratch: Path) -> Workspace:
    random = np.random.default_rng(0)
    coarse = random.integers(0, 255, (sizes.media_height // 10, sizes.media_width // 10, 3), "u1")
    picture = Image.fromarray(coarse).resize((sizes.media_width, sizes.media_height))
    stream = io.BytesIO()
    picture.save(stream, format="JPEG", quality=92)
    files.write_bytes(scratch / "images" / _KEY, stream.getvalue())
    workspace = Workspace.create(
        scratch / "campaign", overrides=[f"source.images={scratch / 'images'}"]
    )
    job = SegmentJob(workspace, workspace.source, _Blobs(sizes))
    LocalExecutor(workspace.root, progress=False).run(job)
    return workspace


def _urls(proposal: Proposal) -> tuple[str, str]:
    return f"/media/image?key={_KEY}&v=1", f"/media/overlay?proposal={proposal.id}&v=1"


def _spent(app: Any, proposals: Sequence[Proposal]) -> float:
    async def view() -> None:
        for proposal in proposals:
            for url in _urls(proposal):
                await _get(app, url)

    start = time.process_time()
    asyncio.run(view())
    return time.process_time() - start


async def _get(app: Any, url: str) -> int:
    """Ask the application itself; the number of bytes that it sends."""
    path, _, query = url.partition("?")
    sent = 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: dict[str, Any]) -> None:
        nonlocal sent
        if message["type"] == "http.response.start":
            assert message["status"] == 200, message
        sent += len(message.get("body", b""))

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1:8765")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8765),
    }
    await app(scope, receive, send)
    return sent


PARTS: dict[str, Callable[[Any, Peers, Path], list[Row]]] = {
    "media": media,
    "page": next_picture,
}
