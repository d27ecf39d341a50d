"""Contact sheets: what a cluster looks like, on one picture."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

CELL = 160
"""Side of a thumbnail's cell, in pixels."""

COLUMNS = 6
_GAP = 4
_TITLE = 28
_PAPER = (250, 250, 248)
_INK = (30, 30, 30)


def contact_sheet(pictures: Sequence[Image.Image], title: str) -> bytes:
    """Thumbnails in rows of six under a title, as JPEG; equal pictures give equal bytes.

    Args:
        pictures: RGB, in the order in which they are laid out.
        title: one line.
    """
    columns = max(1, min(COLUMNS, len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    step = CELL + _GAP
    width = max(_GAP + columns * step, 3 * step)
    sheet = Image.new("RGB", (width, _TITLE + _GAP + rows * step), _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((_GAP + 2, 6), title, fill=_INK, font=ImageFont.load_default(14))
    for number, picture in enumerate(pictures):
        thumbnail = picture.copy()
        thumbnail.thumbnail((CELL, CELL), Image.Resampling.LANCZOS)
        row, column = divmod(number, columns)
        left = _GAP + column * step + (CELL - thumbnail.width) // 2
        top = _TITLE + row * step + (CELL - thumbnail.height) // 2
        sheet.paste(thumbnail, (left, top))
    stream = io.BytesIO()
    sheet.save(stream, format="JPEG", quality=88)
    return stream.getvalue()
