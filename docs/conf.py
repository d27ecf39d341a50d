"""How the documentation is built: ``make docs``; a warning is an error."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from generate import write_generated

import haystack

project = "Haystack"
author = "the Haystack authors"
release = version = haystack.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_generated"]
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_math_renderer = "mathml"
html_show_copyright = False
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


def _inline_formula(translator, node):
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block_formula(translator, node):
    translator.body.append(tex2mathml(node.astext(), as_block=True))
    raise nodes.SkipNode


def setup(app):
    """Formulas become MathML, which browsers show without a script from the network."""
    app.add_html_math_renderer("mathml", (_inline_formula, None), (_block_formula, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
