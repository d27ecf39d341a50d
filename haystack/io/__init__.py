"""Files in and out, one module a format; foreign formats are converted strictly, at the door."""

from __future__ import annotations

from haystack.io.datasets import find_annotations
from haystack.io.psg import read_psg
from haystack.io.psg_writer import write_psg

__all__ = ["find_annotations", "read_psg", "write_psg"]
