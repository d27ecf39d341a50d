"""Puts the helpers beside this file within reach of all tests; no property has to hold in time."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.append(str(Path(__file__).parent))

# Hypothesis fails an example that takes 0.2 seconds, which a busy machine does by itself. All else
# stays as it is, also in the profile that Hypothesis loads where it sees a CI server.
settings.register_profile("haystack", parent=settings(), deadline=None)
settings.load_profile("haystack")
