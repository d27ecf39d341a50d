"""Results pickled as OpenPSG's ``tools/test.py --out`` does, without OpenPSG."""

from __future__ import annotations

import pickle
import sys
import types

PACKAGES = ("openpsg", "openpsg.models")


class Result:
    """Pickles as OpenPSG's class of that name does."""

    __module__ = "openpsg.models"

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def write_results(path, results, protocol=2):
    """Write the pickle, with OpenPSG's modules there for that moment; returns its path."""
    for name in PACKAGES:
        sys.modules[name] = types.ModuleType(name)
    sys.modules["openpsg.models"].Result = Result
    try:
        path.write_bytes(pickle.dumps(results, protocol=protocol))
    finally:
        for name in PACKAGES:
            del sys.modules[name]
    return path
