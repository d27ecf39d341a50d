"""What a number was computed with: versions, machine, image, commit. Runs record it beside results.

A container image sets ``HAYSTACK_COMMIT``, ``HAYSTACK_BASE_IMAGE`` and ``HAYSTACK_LOCK``. Its own
digest no image can know: whoever starts it says it in ``HAYSTACK_IMAGE_DIGEST``. In a git checkout
the commit is asked of git.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import haystack
from haystack.errors import InputError
from haystack.files import sha256_file, write_json

IMAGE_DIGEST, COMMIT = "HAYSTACK_IMAGE_DIGEST", "HAYSTACK_COMMIT"
BASE_IMAGE, LOCK = "HAYSTACK_BASE_IMAGE", "HAYSTACK_LOCK"
NOTES = "environment.json"
"""In a run's folder: ``environments``, the one it began in, then each in which it went on."""
_DRIVER = Path("/proc/driver/nvidia/version")
_PACKAGES = (
    *("torch", "torchvision", "torchmetrics", "numpy", "pyarrow", "pillow", "pycocotools"),
    *("faiss-cpu", "faiss-gpu", "timm", "transformers", "detectron2"),
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


def software() -> dict[str, Any]:
    """What code runs here, whatever it runs on.

    Returns:
        Plain JSON types: ``versions``, ``commit``, ``image_digest``, ``base_image`` (what the
        image was built on) and ``lock_sha256`` (of the file that lists the image's packages); the
        last three are None outside an image.
    """
    lock = Path(os.environ.get(LOCK) or os.devnull)
    return {
        "versions": versions(),
        "commit": commit(),
        "image_digest": os.environ.get(IMAGE_DIGEST) or None,
        "base_image": os.environ.get(BASE_IMAGE) or None,
        "lock_sha256": sha256_file(lock) if lock.is_file() else None,
    }


def environment(device: str = "cpu") -> dict[str, Any]:
    """What a result should record of where it was computed.

    Args:
        device: the PyTorch device that computed it.

    Returns:
        Plain JSON types: those of :func:`software`, ``platform``, ``machine``, ``cpus``, ``device``
        and ``gpu`` (name, memory in bytes, CUDA and driver version; None on others).
    """
    return {
        **software(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "device": str(device),
        "gpu": _gpu(str(device)),
    }


def note_environment(folder: str | Path, device: str = "cpu") -> None:
    """Add what computes from here on to a run's folder, unless the run was going on with just that.

    Raises:
        InputError: the folder's notes are not those of a run.
    """
    path, present = Path(folder) / NOTES, environment(device)
    noted = []
    if path.is_file():
        try:
            noted = list(json.loads(path.read_text(encoding="utf-8"))["environments"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                "expected the environments of a run's processes; remove the file to begin its list "
                f"anew ({error})",
                path=path,
            ) from error
    if present not in noted[-1:]:
        write_json(path, {"environments": [*noted, present]})


def _gpu(device: str) -> dict[str, Any] | None:
    if not device.startswith("cuda"):
        return None
    import torch

    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        "driver": driver_version(_DRIVER),
    }


def driver_version(path: Path) -> str | None:
    """The version of NVIDIA's driver, from where its kernel module describes itself."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+[\d.]*)\s", text)
    return found.group(1) if found else None


def _git(checkout: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(checkout), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
