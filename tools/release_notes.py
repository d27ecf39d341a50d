#!/usr/bin/env python3
"""Print what CHANGELOG.md says of a version: the notes of its release.

python tools/release_notes.py 0.1.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def release_notes(version: str, changelog: str) -> str:
    """The section of a version, without its heading.

    Raises:
        SystemExit: the changelog has no such section.
    """
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    for section in sections:
        heading, _, text = section.partition("\n")
        if heading.split()[0] == version:
            return text.strip() + "\n"
    known = ", ".join(section.split()[0] for section in sections)
    raise SystemExit(f"CHANGELOG.md has no section {version!r}; it has {known}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: release_notes.py VERSION")
    print(release_notes(sys.argv[1], CHANGELOG.read_text(encoding="utf-8")), end="")
