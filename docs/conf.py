"""How the documentation is built: ``make docs``; a warning is an error."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from generate import write_generated

import haystack

project = "Haystack"
author = "the Haystack authors"
release = version = haystack.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_generated"]
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"Haystack {release}"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
nitpicky = False
suppress_warnings = ["autodoc.import_object.typing"]

write_generated(Path(__file__).parent / "_generated")
