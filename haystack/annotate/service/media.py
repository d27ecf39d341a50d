"""Pictures of the images that are asked about, and where their segments are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import FastAPI, Response

from haystack.annotate.records import Proposal
from haystack.annotate.service.errors import sentence
from haystack.annotate.store.store import AnnotationStore

OVERLAY_PALETTE = ((0, 0, 0, 0), (86, 180, 233, 255), (230, 159, 0, 255))
"""RGBA of an overlay's background, subject and object.

A blue and an orange that people with any colour vision tell apart (Okabe and Ito, 2008). The page
tells subject from object by which of red and blue is larger, and background by its alpha.
"""

_IMMUTABLE = "private, max-age=31536000, immutable"


@dataclass(frozen=True)
class Caption:
    """What the two segments of a proposal are called.

    Args:
        subject: the subject's class, as annotators should read it.
        object: the object's class.
    """

    subject: str
    object: str


class Media(Protocol):
    """Pictures and names of a workspace. Methods are called from several threads at once.

    A method raises :class:`~haystack.errors.HaystackError` with a sentence for the annotator when
    it cannot give what it is asked for.
    """

    def image(self, image_key: str) -> tuple[bytes, str]:
        """The picture at display size and its MIME type; already upright (EXIF applied)."""
        ...

    def overlay(self, image_key: str, subject: int, object: int) -> bytes:
        """A PNG of the picture's shape: where the subject is and where the object is.

        A palette PNG with index 0 = neither, 1 = subject, 2 = object and the colours of
        :data:`OVERLAY_PALETTE`. It may be smaller or larger than the picture.
        """
        ...

    def caption(self, proposal: Proposal) -> Caption:
        """Names of the subject's and the object's class."""
        ...


def picture_of(mime: str) -> dict[int | str, dict[str, Any]]:
    """For the schema: a route that gives a picture of this type."""
    content = {mime: {"schema": {"type": "string", "format": "binary"}}}
    return {200: {"content": content, "description": "The picture."}}


def add_media(app: FastAPI, store: AnnotationStore, media: Media, version: str) -> None:
    """Add the routes of pictures and overlays.

    Args:
        app: the application.
        store: tells which images proposals are about. Keys are looked up there, never made into
            paths here.
        media: gives the bytes.
        version: of the media that are served; under another one nothing is kept by browsers.
    """

    @app.get("/media/image", response_class=Response, responses=picture_of("image/*"))
    def get_image(key: str, v: str = "") -> Response:
        """The picture of an image that some proposal is about."""
        if not store.has_image(key):
            return sentence(404, "no proposal is about that image")
        content, mime = media.image(key)
        return Response(content, headers=media_headers(mime, is_current=v == version))

    @app.get("/media/overlay", response_class=Response, responses=picture_of("image/png"))
    def get_overlay(proposal: str, v: str = "") -> Response:
        """Where the subject and the object of a proposal are (palette PNG)."""
        asked = store.proposal(proposal)
        content = media.overlay(asked.image_key, asked.subject, asked.object)
        return Response(content, headers=media_headers("image/png", is_current=v == version))


def media_headers(mime: str, *, is_current: bool) -> dict[str, str]:
    """Headers of a picture.

    Args:
        mime: its type.
        is_current: its address names the version that is served, so that browsers may keep it for
            ever; else they must not keep it at all.
    """
    return {"Content-Type": mime, "Cache-Control": _IMMUTABLE if is_current else "no-store"}
