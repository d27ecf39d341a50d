r"""Writes the bill of materials of an image: sbom.py FLAVOUR OUT.json [--debian PACKAGES.txt].

CycloneDX 1.6 JSON: the packages of the lock file with their checksums, the base image by its
digest, and, where PACKAGES.txt lists them, Debian's packages, a line each as in

    dpkg-query --show --showformat '${Package} ${Version} ${Architecture}\n'

Equal inputs give equal bytes.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).parent.parent


def of_lock(lock: Path) -> dict[str, Any]:
    """The bill of a lock file, by the tool of CycloneDX's makers."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "sbom.json"
        tool = (sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "requirements", lock)
        about = ("--pyproject", ROOT / "pyproject.toml", "--mc-type", "application")
        form = ("--spec-version", "1.6", "--output-reproducible", "--output-file", out)
        subprocess.run((*tool, *about, *form), check=True)
        content: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return content


def base_image(dockerfile: str) -> dict[str, Any]:
    """The component that the images are built on."""
    name, digest = re.search(
        r"^ARG BASE_IMAGE=(\S+)@sha256:([0-9a-f]{64})$", dockerfile, re.MULTILINE
    ).groups()  # type: ignore[union-attr]  # tests hold the Dockerfile to it
    return {
        "type": "container",
        "bom-ref": "base-image",
        "name": name,
        "version": f"sha256:{digest}",
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }


def debian_packages(listing: str) -> list[dict[str, Any]]:
    """A component for each line of name, version and architecture."""
    components = []
    for line in sorted(listing.splitlines()):
        name, version, architecture = line.split()
        url = f"pkg:deb/debian/{name}@{quote(version, safe='')}?arch={architecture}"
        components.append(
            {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
        )
    return components


def main() -> None:
    """Write the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("flavour", choices=("cpu", "cuda"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--debian", type=Path, metavar="PACKAGES.txt")
    args = parser.parse_args()
    content = of_lock(ROOT / "docker" / f"requirements-{args.flavour}.lock")
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    content["components"].append(base_image(dockerfile))
    if args.debian is not None:
        content["components"] += debian_packages(args.debian.read_text(encoding="utf-8"))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{args.out}: {len(content['components'])} components", file=sys.stderr)


if __name__ == "__main__":
    main()
