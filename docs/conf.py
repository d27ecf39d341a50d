"""How the documentation is built: ``make docs``; a warning is an error.

Of Haystack's dependencies the small ones are installed (``requirements.txt``). The others are stood
in for where they are missing: signatures and docstrings need no PyTorch.
"""

# ruff: noqa: E402  (what is imported lies in the folders that come first)

import re
import sys
from importlib.util import find_spec
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from generate import write_generated
from sphinx.ext.autodoc.mock import mock
from sphinx.ext.autodoc.typehints import record_typehints

import haystack

project = "Haystack"
author = "the Haystack authors"
release = version = haystack.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
autosummary_generate = False
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

_HEAVY = (
    *("torch", "torchvision", "torchmetrics", "timm", "safetensors", "pyarrow", "PIL"),
    *("kornia_rs", "zlib_ng", "pycocotools", "matplotlib", "tqdm"),
)
autodoc_mock_imports = [name for name in _HEAVY if find_spec(name) is None]

with mock(autodoc_mock_imports):
    if "torchmetrics" in autodoc_mock_imports:  # a mock as a base class would hide signatures
        import torchmetrics

        torchmetrics.Metric = type("Metric", (), {})
    write_generated(Path(__file__).parent / "_generated")


def _types_of_arguments(app, kind, name, member, options, arguments, returned):
    """A class's arguments have the types of its constructor, not of attributes of their names."""
    if kind == "class" and "__init__" in vars(member):
        record_typehints(app, "method", name, member.__init__, options, arguments, returned)


def _plain_letters(app, kind, name, member, options, lines):
    """``num_predicates: P.`` begins no list whose items are lettered."""
    lines[:] = [re.sub(r"^(\s*:param \S+:) ([A-Z]\.)$", r"\1 \\\2", line) for line in lines]


def _no_aliases(app, kind, name, member, skip, options):
    """Fields of named tuples are described among the arguments."""
    return skip or (getattr(member, "__doc__", "") or "").startswith("Alias for field number")


def _inline_formula(translator, node):
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block_formula(translator, node):
    translator.body.append(tex2mathml(node.astext(), as_block=True))
    raise nodes.SkipNode


def setup(app):
    """Formulas become MathML, which browsers show without a script from the network."""
    app.connect("autodoc-process-docstring", _plain_letters)
    app.connect("autodoc-skip-member", _no_aliases)
    app.connect("autodoc-process-signature", _types_of_arguments, priority=600)
    app.add_html_math_renderer("mathml", (_inline_formula, None), (_block_formula, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
