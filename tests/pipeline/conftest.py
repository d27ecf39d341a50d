from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import pipeline_campaign
from pipeline_campaign import Campaign


@pytest.fixture(scope="session")
def source_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pipeline_campaign.build_source(tmp_path_factory.mktemp("source"))


@pytest.fixture
def campaign(tmp_path: Path, source_root: Path) -> Campaign:
    return Campaign(tmp_path / "workspace", source_root)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, source_root: Path) -> Campaign:
    """All stages run once; tests that use it change nothing."""
    campaign = Campaign(tmp_path_factory.mktemp("finished"), source_root)
    campaign.run()
    return campaign
