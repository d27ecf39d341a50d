"""What a project promises beside its code: citation, releases, templates."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

import haystack

ROOT = Path(__file__).parents[1]


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == haystack.__version__.split(".dev")[0]
    assert citation["cff-version"] == "1.2.0"
    assert {"title", "authors", "message", "preferred-citation"} <= citation.keys()


def test_release_notes_are_the_changelogs_section():
    spec = importlib.util.spec_from_file_location("notes", ROOT / "tools" / "release_notes.py")
    notes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notes)
    changelog = "# Changelog\n\n## 0.2.0 (unreleased)\n\n- new\n\n## 0.1.0\n\n- old\n- older\n"
    assert notes.release_notes("0.2.0", changelog) == "- new\n"
    assert notes.release_notes("0.1.0", changelog) == "- old\n- older\n"
    with pytest.raises(SystemExit, match=r"no section '1'; it has 0\.2\.0, 0\.1\.0"):
        notes.release_notes("1", changelog)
    own = (ROOT / "CHANGELOG.md").read_text()
    assert notes.release_notes(haystack.__version__.split(".dev")[0], own).startswith("- ")


@pytest.mark.parametrize("name", ["bug.yml", "wish.yml"])
def test_issue_templates_are_forms(name):
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text())
    assert {"name", "description", "body"} <= form.keys()
    assert all({"type", "id", "attributes"} <= field.keys() for field in form["body"])


def test_hooks_are_the_linters_of_make_lint():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    makefile = (ROOT / "Makefile").read_text()
    for hook in hooks:
        command = hook["entry"].removeprefix(".venv/bin/")
        assert f"$(BIN)/{command}" in makefile, hook["id"]


def test_targets_and_files_that_contributing_names_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for targets in re.findall(r"make ([a-z -]+?)[`#\n]", text):
        for target in targets.split():
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for file in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / file).exists(), file
