"""Which fonts write a text: matplotlib's own has Latin, Greek and Cyrillic letters, few others.

What it lacks is looked for among the fonts of the machine. What none of them has is drawn as a box,
and a sentence says so, once for each letter in a process.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache

_OWN = "DejaVu Sans"
_BOX = "\N{WHITE SQUARE}"
_SHOWN = 20
# Fonts without serifs, as the own one: of several that have a letter the first here is taken.
_PREFERRED = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Micro Hei"),
    *("WenQuanYi Zen Hei", "Droid Sans Fallback", "PingFang SC", "Hiragino Sans"),
    *("Microsoft YaHei", "SimHei", "Yu Gothic", "Malgun Gothic", "Apple SD Gothic Neo"),
    *("Noto Sans", "Arial Unicode MS"),
)
# These claim letters and have boxes, or have formulas' signs in the places of letters.
_NO_LETTERS = r"\.?Last ?Resort|Adobe Blank|Unicode BMP Fallback|cm[a-z]+10$|STIXSize"
_told: set[str] = set()
_noted: ContextVar[set[str] | None] = ContextVar("boxed letters", default=None)


class MissingLettersWarning(UserWarning):
    """Letters that no font of this machine has are drawn as boxes."""


def families(texts: Iterable[str]) -> list[str]:
    """Families for matplotlib's ``font.family`` that together write these texts.

    Warns of letters that none has, of each once, unless :func:`boxed_letters` notes them.

    Args:
        texts: what is going to be drawn, not yet :func:`legible`.
    """
    chosen, lacking = _fallbacks(_beyond_own(texts))
    noted = _noted.get()
    if noted is not None:
        noted |= lacking
    elif lacking - _told:
        warnings.warn(missing_letters(lacking - _told), MissingLettersWarning, stacklevel=2)
        _told.update(lacking)
    return [_OWN, *chosen]


def legible(text: str) -> str:
    """The text with a box in place of each letter that no font of this machine has."""
    lacking = _fallbacks(_beyond_own([text]))[1]
    return "".join(_BOX if letter in lacking else letter for letter in text)


@contextmanager
def boxed_letters() -> Iterator[set[str]]:
    """The letters that are drawn as boxes meanwhile, for the caller to tell of: no warning does."""
    noted: set[str] = set()
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


def missing_letters(letters: Iterable[str]) -> str:
    """The sentence that says so."""
    ordered = sorted(letters)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return (
        f"no font of this machine has {' '.join(ordered[:_SHOWN])}{more}: drawn as boxes; install "
        "a font that does (Debian: fonts-noto-cjk for Chinese, Japanese and Korean)"
    )


def _beyond_own(texts: Iterable[str]) -> frozenset[str]:
    letters = frozenset("".join(texts))
    if all(map(str.isascii, letters)):
        return frozenset()
    return frozenset(letter for letter in letters - _own_letters() if letter.isprintable())


@lru_cache(maxsize=1024)
def _fallbacks(wanted: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Families that have what any installed font has of ``wanted``, and what none has."""
    chosen: list[str] = []
    left = set(wanted)
    for name, file in _installed() if left else ():
        found = left & _letters(file)
        if found:
            chosen.append(name)
            left -= found
        if not left:
            break
    return tuple(chosen), frozenset(left)


@cache
def _installed() -> tuple[tuple[str, str], ...]:
    """Families with an upright font of normal weight, the preferred ones first, and its file."""
    from matplotlib.font_manager import fontManager

    files: dict[str, str] = {}
    for font in fontManager.ttflist:
        plain = font.style == "normal" and font.weight in (400, "normal", "regular")
        if plain and font.name != _OWN and not re.match(_NO_LETTERS, font.name):
            files.setdefault(font.name, font.fname)
    order = {name: place for place, name in enumerate(_PREFERRED)}
    ranked = sorted(files, key=lambda name: (order.get(name, len(order)), name))
    return tuple((name, files[name]) for name in ranked)


@cache
def _own_letters() -> frozenset[str]:
    from matplotlib.font_manager import findfont

    return _letters(str(findfont(_OWN)))


@cache
def _letters(file: str) -> frozenset[str]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(file).get_charmap()))
    except (OSError, RuntimeError):  # a damaged file
        return frozenset()
