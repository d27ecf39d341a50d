"""What a number was computed with: versions, machine, image, commit. Runs record it beside results.

The container image sets ``HAYSTACK_IMAGE_DIGEST`` and ``HAYSTACK_COMMIT``; in a git checkout the
commit is asked of git.
"""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import haystack

IMAGE_DIGEST, COMMIT = "HAYSTACK_IMAGE_DIGEST", "HAYSTACK_COMMIT"
_PACKAGES = (
    *("torch", "torchvision", "torchmetrics", "numpy", "pyarrow", "pillow", "pycocotools"),
    *("faiss-cpu", "faiss-gpu", "timm"),
)


def versions() -> dict[str, str]:
    """Versions of Haystack, Python, and the packages that numbers can depend on, if installed."""
    found = {"haystack": haystack.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of this code, with ``-dirty`` where files differ from it; None if unknown."""
    if os.environ.get(COMMIT):
        return os.environ[COMMIT]
    checkout = Path(haystack.__file__).parents[1]
    if not (checkout / ".git").exists():
        return None
    try:
        found = _git(checkout, "rev-parse", "HEAD")
        return f"{found}-dirty" if _git(checkout, "status", "--porcelain", "-uno") else found
    except (OSError, subprocess.SubprocessError):  # no git here, or a checkout of somebody else
        return None


def environment(device: str = "cpu") -> dict[str, Any]:
    """What a result should record of where it was computed.

    Args:
        device: the PyTorch device that computed it.

    Returns:
        Plain JSON types: ``versions``, ``platform``, ``machine``, ``cpus``, ``device``, ``gpu``
        (name, memory in bytes, CUDA version; None on others), ``commit`` and ``image_digest``.
    """
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "device": str(device),
        "gpu": _gpu(str(device)),
        "commit": commit(),
        "image_digest": os.environ.get(IMAGE_DIGEST) or None,
    }


def _gpu(device: str) -> dict[str, Any] | None:
    if not device.startswith("cuda"):
        return None
    import torch

    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
    }


def _git(checkout: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(checkout), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
