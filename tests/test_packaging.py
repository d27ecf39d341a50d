import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_distribution_offers_its_extras():
    extras = set(importlib.metadata.metadata("haystack-psg").get_all("Provides-Extra"))
    assert {"gpu", "cpu", "annotate", "postgres", "ray", "track", "demo", "dev"} <= extras


def test_continuous_integration_runs_the_two_public_commands():
    script = (ROOT / ".ci" / "run").read_text()
    assert "make lint" in script
    assert "make test" in script


@pytest.mark.slow
def test_the_wheel_carries_configurations_data_and_page(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in (
        "configs/pipeline/sa1b.yaml",
        "data/psg_mini/ATTRIBUTION.md",
        "annotate/static/index.html",
        "demo/report.html",
        "py.typed",
    ):
        assert (site / "haystack" / name).is_file()
    code = (
        "from haystack.cli.configs import find_config; from haystack.io import read_psg; "
        "import haystack; print(haystack.__file__, find_config('pipeline/sa1b'));"
        "assert len(read_psg('psg-mini')) == 53"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert all(path.startswith(str(site)) for path in done.stdout.split())
