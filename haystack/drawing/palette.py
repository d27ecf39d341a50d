"""Colours that people with any colour vision tell apart, and the ink that is legible on them."""

from __future__ import annotations

Colour = tuple[int, int, int]

# Okabe and Ito (2008) without black, then the hues of Tol's "muted" scheme (2021) that differ most
# from them; neighbours in the list differ in lightness too.
COLOURS: tuple[Colour, ...] = (
    (0, 114, 178),
    (230, 159, 0),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (213, 94, 0),
    (240, 228, 66),
    (51, 34, 136),
    (153, 153, 51),
    (136, 34, 85),
    (68, 170, 153),
    (204, 102, 119),
    (17, 119, 51),
    (221, 204, 119),
)

DARK: Colour = (28, 36, 48)
SOFT: Colour = (91, 102, 117)
LINE: Colour = (217, 223, 230)
PAPER: Colour = (255, 255, 255)


def colour_of(number: int) -> Colour:
    """Colour of the object that comes as number ``number``; they repeat after fourteen."""
    return COLOURS[number % len(COLOURS)]


def ink_on(colour: Colour) -> Colour:
    """Dark or white, whichever has more contrast (WCAG 2.1's relative luminance)."""
    channels = []
    for value in colour:
        share = value / 255
        channels.append(share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4)
    luminance = 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]
    return DARK if luminance > 0.2 else PAPER


def hexadecimal(colour: Colour) -> str:
    """``#rrggbb``."""
    return "#{:02x}{:02x}{:02x}".format(*colour)
