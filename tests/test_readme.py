"""What the README shows is what the command line takes."""

import re
import shlex
from pathlib import Path

import pytest

from haystack.cli.parser import parse

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("haystack ")
]


def test_the_readme_shows_commands():
    assert len(COMMANDS) > 12


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_readme_is_one(command):
    args = parse(shlex.split(command)[1:])
    assert callable(args.run)


def test_every_python_block_of_the_readme_compiles():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        compile(block, "README.md", "exec")


def test_the_make_targets_of_the_readme_exist():
    makefile = (Path(__file__).parent.parent / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"`make (?:\w+=\S+ )?([a-z-]+)`", README)
    assert "demo" in targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
