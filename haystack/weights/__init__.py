"""Weights by name: which are known, where they lie on this machine, and how they get there.

Nothing heavy is imported here, and nothing is downloaded but by ``download.pull``.
"""

from haystack.weights.catalogue import NAMES, Weights, known
from haystack.weights.store import checksum, find, folder, locate, missing, resolve

__all__ = [
    "NAMES",
    "Weights",
    "checksum",
    "find",
    "folder",
    "known",
    "locate",
    "missing",
    "resolve",
]
