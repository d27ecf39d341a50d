from __future__ import annotations

import subprocess
import sys

import pytest

import haystack.annotate


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_package_is_light_until_something_of_it_is_used():
    code = "import sys, haystack.annotate; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = set(run(code).stdout.split())
    assert not loaded & {"sqlalchemy", "fastapi", "uvicorn", "pydantic", "numpy", "torch"}


def test_the_store_and_labels_need_neither_numpy_nor_a_web_framework():
    code = (
        "import sys; from haystack.annotate import AnnotationStore, resolve, answer_from_truth; "
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    loaded = set(run(code).stdout.split())
    assert "sqlalchemy" in loaded
    assert not loaded & {"fastapi", "uvicorn", "pydantic", "numpy", "torch"}


@pytest.mark.parametrize(
    ("missing", "name"),
    [
        ("sqlalchemy", "AnnotationStore"),
        ("sqlalchemy", "create_app"),
        ("fastapi", "create_app"),
        ("fastapi", "Caption"),
        ("uvicorn", "serve"),
    ],
)
def test_a_missing_package_is_a_sentence_with_the_command_that_installs_it(missing, name):
    result = run(
        f"import sys; sys.modules[{missing!r}] = None; import haystack.annotate as a; a.{name}"
    )
    assert result.returncode != 0
    assert "MissingDependencyError" in result.stderr
    assert f"needs the package '{missing}', which is not installed" in result.stderr
    assert "pip install 'haystack-psg[annotate]'" in result.stderr


def test_every_public_name_exists():
    for name in haystack.annotate.__all__:
        assert getattr(haystack.annotate, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        haystack.annotate.nothing  # noqa: B018
