r"""Writes the bill of materials of an image: sbom.py FLAVOUR OUT.json [--debian PACKAGES.txt].

CycloneDX 1.6 JSON: the packages of the lock file with their checksums, the base image by its
digest, and, where PACKAGES.txt lists them, Debian's packages, a line each as in

    dpkg-query --show --showformat '${Package} ${Version} ${Architecture}\n'

Equal inputs give equal bytes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from compare_installed import read_text

ROOT = Path(__file__).parent.parent


def of_lock(lock: Path) -> dict[str, Any]:
    """The bill of a lock file, by the tool of CycloneDX's makers.

    Raises:
        SystemExit: with a sentence, where the file or the tool is missing or damaged.
    """
    if "==" not in read_text(lock):
        sys.exit(f"{lock} locks no package: make lock writes it anew")
    if importlib.util.find_spec("cyclonedx_py") is None:
        sys.exit("cyclonedx-bom is not installed: pip install 'haystack-psg[image]', or make sbom")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "sbom.json"
        tool = (sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "requirements", lock)
        about = ("--pyproject", ROOT / "pyproject.toml", "--mc-type", "application")
        form = ("--spec-version", "1.6", "--output-reproducible", "--output-file", out)
        if done := subprocess.run((*tool, *about, *form), check=False).returncode:
            sys.exit(f"{lock}: cyclonedx_py wrote no bill of it (exit code {done}, see above)")
        content: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return content


def base_image(dockerfile: str) -> dict[str, Any]:
    """The component that the images are built on; SystemExit where the Dockerfile names none."""
    found = re.search(r"^ARG BASE_IMAGE=(\S+)@sha256:([0-9a-f]{64})$", dockerfile, re.MULTILINE)
    if found is None:
        sys.exit("docker/Dockerfile has no line 'ARG BASE_IMAGE=NAME@sha256:DIGEST'")
    name, digest = found.groups()
    return {
        "type": "container",
        "bom-ref": "base-image",
        "name": name,
        "version": f"sha256:{digest}",
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }


def debian_packages(listing: str) -> list[dict[str, Any]]:
    """A component for each line of name, version and architecture.

    Raises:
        SystemExit: with a sentence, at a line of another kind or where there is none.
    """
    if not listing.strip():
        sys.exit("the list of Debian's packages is empty: make image-test writes it anew")
    components = []
    for line in sorted(listing.splitlines()):
        try:
            name, version, architecture = line.split()
        except ValueError:
            sys.exit(
                "the list of Debian's packages has name, version and architecture in each line, "
                f"not {line!r}: make image-test writes it anew"
            )
        url = f"pkg:deb/debian/{name}@{quote(version, safe='')}?arch={architecture}"
        components.append(
            {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
        )
    return components


def main(argv: list[str] | None = None) -> None:
    """Write the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("flavour", choices=("cpu", "cuda"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--debian", type=Path, metavar="PACKAGES.txt")
    args = parser.parse_args(argv)
    others = [base_image(read_text(ROOT / "docker" / "Dockerfile"))]
    if args.debian is not None:
        others += debian_packages(read_text(args.debian))
    content = of_lock(ROOT / "docker" / f"requirements-{args.flavour}.lock")
    content["components"] += others
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        sys.exit(f"{args.out} cannot be written: {error.filename}: {error.strerror}")
    print(f"{args.out}: {len(content['components'])} components", file=sys.stderr)


if __name__ == "__main__":
    main()
