"""Every command and every line of Python in the documentation is run, in the order of its page."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from user_folder import fill_folder

import haystack.cli.parser
from haystack.cli import main
from haystack.cli.bench import load_benchmark
from haystack.evaluation import Benchmark

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README] + [
    DOCS / name
    for name in (
        "quickstart.md",
        "tutorials/training_loop.md",
        "tutorials/openpsg.md",
        "tutorials/report.md",
        "tutorials/propose.md",
        "tutorials/team.md",
        "tutorials/retrain.md",
        "tutorials/clusters_of_machines.md",
        "tutorials/own_model.md",
        "reference/metrics.md",
        "reference/benchmarks.md",
        "reference/formats.md",
        "troubleshooting.md",
    )
]
ELSEWHERE = {
    "pip install": "tests/test_packaging.py builds the wheel and reads its metadata",
    "haystack demo": "tests/demo/test_demo.py",
    "haystack convert": "tests/models/checkpoints",
    "haystack annotators add work lea --lead --database": "tests/annotate/test_team.py",
    "haystack annotate work --host 0.0.0.0 --database": "tests/annotate/test_team.py",
    "haystack export work --database": "tests/annotate/test_team.py",
}
"""Commands that another test runs: beginnings, and where."""
README_ELSEWHERE = {
    "python3 -m venv": "the Makefile's rule for .venv, which every target runs",
    ". .venv/bin/activate": "the shell alone",
    "haystack predict photographs/ --model model.safetensors --segmenter maskdino": (
        "tests/cli/test_segmenters.py, with weights that it makes"
    ),
    "haystack predict photographs/ --model model.safetensors --segmenter yolo-seg": (
        "tests/pipeline/segmenters, where the extra is installed"
    ),
    "haystack train train/vctree_psg annotations=psg.json": "tests/training/test_configs.py",
    "haystack import work/export/events.jsonl": "tests/annotate/test_events_out.py, on PostgreSQL",
    "haystack import project.json": "tests/io/test_label_studio.py",
    "haystack import train.json": "tests/io/test_coco_relations.py",
}
INSTEAD = {
    "haystack embed work source.images=/data/images": [
        "haystack embed work source.images=photos embed.encoder=efficientnet-lite0"
    ],
    "haystack score work score.model=model.safetensors score.statistics=psg.json": [
        "haystack score work score.model=model.safetensors score.statistics=psg.json "
        "score.min_count=0"
    ],
    "python examples/train_loop_psg_mini.py": ["python examples/train_loop_psg_mini.py --epochs 1"],
    "haystack annotate work": [
        "haystack annotate work",
        "haystack annotate work --answers-from psg-mini",
    ],
    "haystack campaign next work campaign.train=train/vctree_psg campaign.annotations=psg.json "
    "--dry-run": [
        "haystack campaign next work campaign.train=train/vctree_psg_mini "
        "campaign.annotations=psg.json --dry-run"
    ],
    "haystack campaign next work": [
        "haystack campaign next work campaign.train=train/vctree_psg_mini "
        "campaign.annotations=psg.json"
    ],
}
"""On README's page: data that nobody has here, weights that nothing may fetch, and people."""
RUN_ELSEWHERE = {DOCS / "scale.md": "tests/test_scale.py"}
QUICK = {"train/vctree_psg_mini": "steps=4"}
"""Settings that shorten a training; nothing depends on how good the model is."""


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of the fenced blocks, in order."""
    text = page.read_text(encoding="utf-8")
    for fence in re.finditer(r"^```(bash|python)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield fence[1], fence[2]


def commands(block: str) -> Iterator[list[str]]:
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def run_line(words: list[str], page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = " ".join(words)
    elsewhere = {**ELSEWHERE, **(README_ELSEWHERE if page == README else {})}
    if any(line.startswith(beginning) for beginning in elsewhere):
        return
    for command in INSTEAD.get(line, [line]) if page == README else [line]:
        run_command(words if command == line else shlex.split(command), monkeypatch)


def run_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    line = " ".join(words)
    if words[0] == "haystack":
        words = words[1:]
        words += [setting for name, setting in QUICK.items() if name in words]
        if words[0] == "annotate" and "--answers-from" not in words:
            monkeypatch.setattr("haystack.annotate.service.server.serve", _ask_once)
        monkeypatch.setattr(sys, "argv", ["haystack", *words])
        assert main(words) == 0, f"haystack {' '.join(words)}"
        return
    if words[0] == "python":
        words = [sys.executable, *words[1:]]
    assert Path(words[0]).exists(), (
        f"{line}: neither a verb nor a file; say in ELSEWHERE who runs it"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{line}\n{done.stderr}"


def _with_few_resamples(name: str) -> Benchmark:
    return dataclasses.replace(load_benchmark(name), replicates=40)


def _ask_once(app, *arguments, **options) -> None:
    """In place of serving for ever: one question, as the page asks it."""
    from fastapi.testclient import TestClient

    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/api/progress").status_code in (200, 401)  # 401: people log in there


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_everything_on_the_page_runs(page, tmp_path, monkeypatch):
    found = list(blocks(page))
    if not found:
        pytest.skip("the page holds no code")
    fill_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("haystack.cli.bench.load_benchmark", _with_few_resamples)
    monkeypatch.setenv("HAYSTACK_WEIGHTS", str(tmp_path / "weights"))
    namespace: dict[str, object] = {}
    for language, text in found:
        if (
            language == "python" and page != README
        ):  # README's are pieces; test_readme compiles them
            exec(compile(text, str(page), "exec"), namespace)
        elif language == "bash":
            for words in commands(text):
                run_line(words, page, monkeypatch)


def test_every_page_is_run_or_holds_no_code():
    listed = {*PAGES, *RUN_ELSEWHERE}
    for page in DOCS.rglob("*.md"):
        if page.parent.name.startswith("_") or page in listed:
            continue
        assert not list(blocks(page)), f"{page.relative_to(ROOT)} holds code; list it in PAGES"


def test_every_page_is_linked():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix("").as_posix()
        if not name.startswith("_") and name != "index":
            assert re.search(rf"^{re.escape(name)}$", index, re.MULTILINE), f"{name} is not linked"


NOT_INSTALLED = """
from importlib.machinery import PathFinder

found = PathFinder.find_spec
missing = {missing}
PathFinder.find_spec = lambda name, *rest: (
    None if name.partition(".")[0] in missing else found(name, *rest)
)
"""
"""A ``sitecustomize`` that hides packages."""
IMPORT_NAMES = {"pillow": "PIL", "kornia-rs": "kornia_rs", "zlib-ng": "zlib_ng"}


def test_make_docs_installs_what_pyproject_names():
    lines = (DOCS / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    extra = [name for name in wanted if name not in dependencies()]
    assert extra == optional_dependencies()["docs"]


@pytest.mark.parametrize("small", [False, True], ids=["all installed", "as make docs installs"])
def test_the_documentation_is_built_without_a_warning(tmp_path, small):
    pytest.importorskip("sphinx", reason="needs the extra 'docs'")
    copy = tmp_path / "docs"
    shutil.copytree(DOCS, copy, ignore=shutil.ignore_patterns("_*"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if small:
        requirements = (DOCS / "requirements.txt").read_text(encoding="utf-8").splitlines()
        names = [
            re.match(r"[\w-]+", line)[0] for line in dependencies() if line not in requirements
        ]
        missing = {IMPORT_NAMES.get(name, name) for name in names}
        assert "torch" in missing
        hiding = NOT_INSTALLED.format(missing=missing | {"fastapi", "sqlalchemy", "faiss", "scipy"})
        (tmp_path / "sitecustomize.py").write_text(hiding)
        environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{ROOT}"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [*command, str(copy), str(tmp_path / "built")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    reference = tmp_path / "built" / "reference"
    built = (reference / "metrics.html").read_text(encoding="utf-8")
    assert "single-mpo" in built
    assert "<math" in built
    assert "\\frac" not in built, "formulas must be legible without a network"
    verbs = (reference / "verbs.html").read_text(encoding="utf-8")
    for name in haystack.cli.parser.build_parser()._subparsers._group_actions[0].choices:
        assert f"usage: haystack {name}" in verbs
    page = (reference / "api" / "metrics.html").read_text(encoding="utf-8")
    assert "mailto:" not in page  # R@inf
    text = re.sub(r"<[^>]*>", "", page)
    assert "PairRecall(num_predicates, ks=(20, 50, 100)" in text  # no mock's signature
    assert "ks (Sequence[int])" in text  # its constructor's type, not the attribute's
    assert ("torch.Tensor" in text) == small


def dependencies() -> list[str]:
    return _project()["dependencies"]


def optional_dependencies() -> dict[str, list[str]]:
    return _project()["optional-dependencies"]


def _project() -> dict:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
