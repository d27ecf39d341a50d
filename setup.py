"""Everything stands in pyproject.toml, but that ``configs/`` travels inside the package."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["haystack", "haystack.*"]), "haystack.configs"],
    package_dir={"haystack.configs": "configs"},
)
