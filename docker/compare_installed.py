"""Refuses an image whose packages are not those of its lock file: compare_installed.py LOCK JSON.

JSON maps the names of the installed distributions to their versions. The SBOM is made of the lock
file, so that it describes the image only where this passes.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

# Haystack itself, and what `python -m venv` brought.
_NOT_LOCKED = {"haystack-psg", "pip"}


def locked(text: str) -> dict[str, str]:
    """Distribution -> version of a lock file that pip reads."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


def differences(locked: dict[str, str], installed: dict[str, str]) -> list[str]:
    """A sentence for each package that is not there as the lock file says."""
    there = {re.sub(r"[-_.]+", "-", name).lower(): v for name, v in installed.items()}
    names = sorted((locked.keys() | there.keys()) - _NOT_LOCKED)
    none = "not at all"
    return [
        f"{name}: locked {locked.get(name, none)}, installed {there.get(name, none)}"
        for name in names
        if locked.get(name) != there.get(name)
    ]


def main(lock: str, installed: str) -> int:
    """Compare two files; exit code 1 where they differ."""
    found = differences(
        locked(Path(lock).read_text(encoding="utf-8")),
        json.loads(Path(installed).read_text(encoding="utf-8")),
    )
    print("\n".join(found) or f"the installed packages are those of {lock}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
