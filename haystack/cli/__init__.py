"""The command line: ``haystack VERB``. Only here are the parts of Haystack wired together.

Human text goes to stderr; ``--json`` puts one JSON object on stdout. Exit codes: 0 ok, 1 failure,
2 usage or bad input, 3 finished but some inputs were quarantined.
"""

from haystack.cli.parser import main

__all__ = ["main"]
