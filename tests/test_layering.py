"""Imports go from the particular to the general, never back; and the package starts light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import haystack

PACKAGE = Path(haystack.__file__).parent

# Layer -> the layers that it may import, besides itself. Only `cli`, `campaign` and `demo` wire.
BASE = {"errors", "files", "config", "text", "times", "devices", "environment", "proportion"}
DATA = BASE | {"vocabulary", "scene_graph", "statistics"}
IO = DATA | {"io"}
FUNCTIONAL = DATA | {"metrics.functional"}
METRICS = FUNCTIONAL | {"metrics"}
MODELS = IO | METRICS | {"models", "weights"}
ALLOWED = {
    "errors": set(),
    "files": {"errors"},
    "environment": {"errors", "files"},
    "config": {"errors"},
    "text": set(),
    "times": set(),
    "proportion": set(),
    "devices": {"errors"},
    "vocabulary": BASE,
    "scene_graph": BASE | {"vocabulary"},
    "statistics": DATA,
    "io": DATA,
    "weights": BASE,
    "metrics.functional": DATA,
    "metrics": FUNCTIONAL,
    "evaluation": IO | METRICS,
    "reporting": IO | METRICS | {"evaluation", "drawing"},
    "models": IO | METRICS,
    "drawing": DATA,
    "pipeline": MODELS | {"executors", "drawing"},  # its jobs keep the executors' contract
    "training": MODELS,
    "executors": BASE,
    "annotate": BASE,
}
WIRING = {"cli", "campaign", "demo", "__main__"}


def layer_of(module):
    parts = module.split(".")[1:]
    if not parts:
        return None  # the package itself: its version and its lazy names
    if parts[:2] == ["metrics", "functional"]:
        return "metrics.functional"
    return parts[0]


def imports_of(path):
    module = ".".join(("haystack", *path.relative_to(PACKAGE).with_suffix("").parts))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    package = package.removesuffix(".__init__")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join((*above, base)).rstrip(".")
            yield from (f"{base}.{alias.name}" for alias in node.names)


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "data")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_layers(path):
    relative = path.relative_to(PACKAGE)
    if relative.parts == ("__init__.py",):
        return
    own = layer_of(".".join(("haystack", *relative.with_suffix("").parts)))
    if own in WIRING:
        return
    assert own in ALLOWED, f"{relative} belongs to no layer; name its place in this test"
    for name in imports_of(path):
        if name == "haystack" or name.startswith("haystack."):
            layer = layer_of(name)
            version_only = name in ("haystack", "haystack.__version__")
            assert version_only or layer == own or layer in ALLOWED[own], (
                f"{relative} imports {name}: {own} must not depend on {layer}"
            )


def test_every_layer_exists():
    present = {path.stem for path in PACKAGE.glob("*.py")} | {
        path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()
    }
    assert present - {"__init__"} - WIRING == {name.split(".")[0] for name in ALLOWED}


HEAVY = ("torch", "faiss", "fastapi", "sqlalchemy", "timm", "torchmetrics", "pyarrow", "numpy")


@pytest.mark.parametrize(
    "statement", ["import haystack", "import haystack.cli.parser as m; m.build_parser()"]
)
def test_starting_imports_nothing_heavy(statement):
    code = f"import sys; {statement}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("package", ["annotate", "executors", "weights"])
def test_the_annotation_service_the_executors_and_the_weights_need_no_torch(package):
    modules = [
        ".".join(("haystack", *path.relative_to(PACKAGE).with_suffix("").parts))
        for path in sorted((PACKAGE / package).rglob("*.py"))
        if path.stem != "__init__"
    ]
    assert modules
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(*[name for name in ('torch', 'faiss', 'timm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_serving_the_annotation_page_needs_no_torch():
    """What ``haystack annotate`` imports before it serves; PyTorch would cost seconds, and 1 GB."""
    code = (
        "import importlib, sys\n"
        "for name in ('cli.annotate', 'cli.annotators', 'cli.truth', 'campaign.rounds', 'io', "
        "'pipeline.workspace', 'pipeline.jobs.gather', 'pipeline.jobs.upstream', "
        "'annotate.service.server', 'annotate.service.app', 'annotate.store.store', 'cli.pages', "
        "'cli.yields', 'pipeline.cluster_choice', 'pipeline.examples', 'pipeline.media', "
        "'drawing.figures'):\n"
        "    importlib.import_module(f'haystack.{name}')\n"
        "print(*[name for name in ('torch', 'faiss', 'timm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
