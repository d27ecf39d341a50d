r"""Names in LaTeX, in letters that every engine sets without further packages where that can be.

Accents and letters of Latin alphabets become commands, Greek letters those of formulas. pdfLaTeX
knows no others without packages for their script; XeLaTeX and LuaLaTeX set them in a font that has
them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

_FORMULA = r"\ensuremath{"
_SIGNS = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "\N{EN DASH}": "--",
    "\N{EM DASH}": "---",
    "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}",
    "\N{LEFT SINGLE QUOTATION MARK}": "`",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT DOUBLE QUOTATION MARK}": "``",
    "\N{RIGHT DOUBLE QUOTATION MARK}": "''",
    "\N{NO-BREAK SPACE}": "~",
    "\N{MICRO SIGN}": r"\ensuremath{\mu}",
    "\N{DEGREE SIGN}": r"\ensuremath{^{\circ}}",
    "\N{MULTIPLICATION SIGN}": r"\ensuremath{\times}",
    "\N{PLUS-MINUS SIGN}": r"\ensuremath{\pm}",
    "\N{MIDDLE DOT}": r"\ensuremath{\cdot}",
    "\N{RIGHTWARDS ARROW}": r"\ensuremath{\rightarrow}",
    "\N{LEFTWARDS ARROW}": r"\ensuremath{\leftarrow}",
}
_LETTERS = {
    "\N{LATIN SMALL LETTER SHARP S}": r"\ss{}",
    "\N{LATIN SMALL LETTER AE}": r"\ae{}",
    "\N{LATIN CAPITAL LETTER AE}": r"\AE{}",
    "\N{LATIN SMALL LIGATURE OE}": r"\oe{}",
    "\N{LATIN CAPITAL LIGATURE OE}": r"\OE{}",
    "\N{LATIN SMALL LETTER O WITH STROKE}": r"\o{}",
    "\N{LATIN CAPITAL LETTER O WITH STROKE}": r"\O{}",
    "\N{LATIN SMALL LETTER L WITH STROKE}": r"\l{}",
    "\N{LATIN CAPITAL LETTER L WITH STROKE}": r"\L{}",
    "\N{LATIN SMALL LETTER DOTLESS I}": r"\i{}",
}
_ACCENTS = {
    "\N{COMBINING GRAVE ACCENT}": "`",
    "\N{COMBINING ACUTE ACCENT}": "'",
    "\N{COMBINING CIRCUMFLEX ACCENT}": "^",
    "\N{COMBINING TILDE}": "~",
    "\N{COMBINING DIAERESIS}": '"',
    "\N{COMBINING DOUBLE ACUTE ACCENT}": "H",
    "\N{COMBINING RING ABOVE}": "r",
    "\N{COMBINING CARON}": "v",
    "\N{COMBINING BREVE}": "u",
    "\N{COMBINING MACRON}": "=",
    "\N{COMBINING DOT ABOVE}": ".",
    "\N{COMBINING DOT BELOW}": "d",
    "\N{COMBINING CEDILLA}": "c",
    "\N{COMBINING MACRON BELOW}": "b",
}
_FORMULA_ACCENTS = {
    "\N{COMBINING ACUTE ACCENT}": "acute",
    "\N{COMBINING DIAERESIS}": "ddot",
    "\N{COMBINING GREEK PERISPOMENI}": "tilde",
}
_GREEK = frozenset(
    (
        *("ALPHA", "BETA", "GAMMA", "DELTA", "EPSILON", "ZETA", "ETA", "THETA", "IOTA", "KAPPA"),
        *("LAMDA", "MU", "NU", "XI", "PI", "RHO", "SIGMA", "TAU", "UPSILON", "PHI", "CHI"),
        *("PSI", "OMEGA"),
    )
)
# Letters that look like Latin ones have no command in formulas.
_GREEK_LIKE_LATIN = dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧο", "ABEZHIKMNOPTYXo", strict=True))  # noqa: RUF001


def escape(text: str) -> str:
    """A text on one line, nothing in it a command."""
    return "".join(map(_escaped, _clusters(unicodedata.normalize("NFD", " ".join(text.split())))))


def beyond_pdflatex(escaped: str) -> str:
    """The letters of an escaped text that pdfLaTeX does not know, each once, in their order."""
    return "".join(dict.fromkeys(c for c in escaped if not c.isascii()))


def _clusters(text: str) -> Iterator[str]:
    """Letters, each with the accents that follow it."""
    start = 0
    for place in range(1, len(text) + 1):
        if place == len(text) or not unicodedata.combining(text[place]):
            yield text[start:place]
            start = place


def _escaped(cluster: str) -> str:
    letter, accents = cluster[:1], cluster[1:]
    command = _SIGNS.get(letter) or _LETTERS.get(letter) or _greek(letter) or letter
    for accent in accents:
        if command.startswith(_FORMULA) and accent in _FORMULA_ACCENTS:
            inner = command.removeprefix(_FORMULA).removesuffix("}")
            command = rf"{_FORMULA}\{_FORMULA_ACCENTS[accent]}{{{inner}}}}}"
        elif command.isascii() and accent in _ACCENTS:
            dotless = {"i": r"\i", "j": r"\j"}.get(command, command)
            command = rf"\{_ACCENTS[accent]}{{{dotless}}}"
        else:
            return unicodedata.normalize("NFC", cluster)
    return command if command.isascii() else unicodedata.normalize("NFC", cluster)


def _greek(letter: str) -> str | None:
    if letter in _GREEK_LIKE_LATIN:
        return rf"{_FORMULA}\mathrm{{{_GREEK_LIKE_LATIN[letter]}}}}}"
    if letter == "\N{GREEK SMALL LETTER FINAL SIGMA}":
        return rf"{_FORMULA}\varsigma}}"
    kind, _, name = unicodedata.name(letter, "").partition(" LETTER ")
    if kind not in ("GREEK SMALL", "GREEK CAPITAL") or name not in _GREEK:
        return None
    command = name.replace("LAMDA", "LAMBDA").lower()
    return rf"{_FORMULA}\{command if kind == 'GREEK SMALL' else command.capitalize()}}}"
