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


def read_lock(path: Path) -> dict[str, str]:
    """Distribution -> version of a lock file; SystemExit with a sentence where it has none."""
    packages = locked(read_text(path))
    if not packages:
        sys.exit(f"{path} locks no package: a file of lines like 'numpy==2.4.6 \\' is expected")
    return packages


def read_installed(path: Path) -> dict[str, str]:
    """Distribution -> version as the image told it; SystemExit with a sentence where it did not."""
    try:
        installed = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        sys.exit(f"{path} is not JSON ({error}): did the image's Python end early?")
    if not isinstance(installed, dict) or not all(isinstance(v, str) for v in installed.values()):
        sys.exit(f'{path} is not an object of names and versions, as in {{"numpy": "2.4.6"}}')
    return installed


def read_text(path: Path) -> str:
    """A file's content; SystemExit with a sentence where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        sys.exit(f"{path} cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        sys.exit(f"{path} is not a text in UTF-8: {error.reason} at byte {error.start}")


def main(lock: Path, installed: Path) -> int:
    """Compare two files; exit code 1 where they differ."""
    found = differences(read_lock(lock), read_installed(installed))
    print("\n".join(found) or f"the installed packages are those of {lock}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: compare_installed.py LOCK JSON")
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
