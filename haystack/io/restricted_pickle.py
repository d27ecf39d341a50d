"""Predictions and models in pickles, read without executing anything.

A pickle is a program; the usual reader runs it. :class:`PickledList` builds plain values, NumPy
arrays and numbers, PyTorch tensors (as arrays, wherever they were), and instances of the classes of
OpenPSG and its relatives as :class:`Record`, which holds their attributes and nothing else.
:func:`read_pickle` does so for a file of arrays, :func:`read_pickled_model` for one that holds a
whole PyTorch model. PyTorch, OpenPSG and mmdet need not be installed. Every other global is refused
by name.
"""

from __future__ import annotations

import itertools
import math
import mmap
import re
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from haystack.errors import InputError
from haystack.io import pickle_machine
from haystack.io.pickle_machine import Global, Machine, Pending, Raw, Record
from haystack.io.pickle_opcodes import outline

__all__ = ["PickledList", "Record", "read_pickle", "read_pickled_model"]

FOREIGN_PACKAGES = ("openpsg", "pairnet", "hilo", "mmdet", "mmcv")
"""Packages whose classes become records: OpenPSG, models built on it, and what they build on."""

_PROTO = 0x80
_MAX_DIMENSIONS = 32
_DTYPE = re.compile(r"[?bBhHiIlLqQefd]|[biufO]\d{1,2}")
_TORCH_HEADER = 4096  # bytes; some 300 are usual, and so few can do no harm
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C
_TORCH_STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "?",
}
_SAME = {
    "__builtin__": "builtins",  # protocol 2 has Python 2's name
    "numpy._core.multiarray": "numpy.core.multiarray",
    "numpy._core.numeric": "numpy.core.numeric",
}
_END = object()


class PickledList:
    """The items of a list in a pickle; iterate over it for one at a time.

    Only the item that is asked for is in memory, whatever the size of the file. Arrays are
    read-only views of the mapped file, and so are bytes, 256 and more of them: copy what is to
    outlast the item.

    Args:
        path: the file.

    Raises:
        InputError: no pickle of protocol 2 to 5, or no list; and, when an item is read, it names
            something that is refused, or it is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._open() as buffer, _one_sentence(self.path):
            if buffer[0] != _PROTO:
                raise InputError(
                    "expected a pickle of protocol 2 to 5, which begins with the byte 0x80, got "
                    f"0x{buffer[0]:02x}"
                )
            self._plan = outline(buffer)
            if not self._plan.is_list:
                raise InputError("expected a pickled list, one entry an image")

    def __len__(self) -> int:
        return len(self._plan.ends)

    def __iter__(self) -> Iterator[Any]:
        # Never closed by hand: items are views of it, and the last of them unmaps it.
        items = pickle_machine.items(self._open(), _resolve, self._plan)
        for number in itertools.count():
            with _one_sentence(self.path, f"entry {number}"):
                item = next(items, _END)
            if item is _END:
                return
            yield item

    def _open(self) -> mmap.mmap:
        try:
            with self.path.open("rb") as stream:
                return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InputError(f"cannot read it as a pickle: {error}", path=self.path) from error
        except ValueError:  # nothing can be mapped
            raise InputError("cannot read it as a pickle: it is empty", path=self.path) from None


def read_pickle(path: str | Path) -> Any:
    """The value of a pickle of plain values and arrays, such as detectron2's ``.pkl`` weights.

    Args:
        path: the file.

    Raises:
        InputError: no pickle, damaged, or it names something that is refused.
    """
    file = Path(path)
    with _one_sentence(file):
        try:
            content = file.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read it as a pickle: {error.strerror}") from error
        return _run(content, _resolve)


def read_pickled_model(path: str | Path, packages: Collection[str]) -> Any:
    """What ``torch.save`` wrote of a whole model: modules as records, tensors as arrays.

    A module's parameters, buffers and parts are among its attributes, under ``_parameters``,
    ``_buffers`` and ``_modules``.

    Args:
        path: a zip file of PyTorch 1.6 or later.
        packages: whose classes may be records, beside ``torch.nn.modules``.

    Raises:
        InputError: no such file, damaged, or it names something that is refused.
    """
    file = Path(path)

    def resolve(module: str, name: str) -> Global:
        if module.startswith("torch.nn.modules.") or module.partition(".")[0] in packages:
            return Global(module, name, create=lambda: Record(f"{module}.{name}"))
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return Global(module, name, lambda arguments: arguments[0])
        if (_SAME.get(module, module), name) == ("builtins", "getattr"):
            return Global(module, name, lambda arguments: None)  # a bound method; nothing is
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return Global(module, name, partial(_tensor, expanded=True))  # a cached grid
        return _resolve(module, name)

    with _one_sentence(file):
        try:
            archive = zipfile.ZipFile(file)
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"cannot read it as a file of torch.save: {error}") from error
        with archive:
            names = archive.namelist()
            folder = next((n.removesuffix("data.pkl") for n in names if n.endswith("data.pkl")), "")
            _expect(
                all(entry.file_size == entry.compress_size for entry in archive.infolist()),
                "compressed content, which PyTorch does not write",
            )

            def storage(reference: Any) -> _Storage:
                dtype = _storage_type(reference)
                return _Storage(np.frombuffer(archive.read(f"{folder}data/{reference[2]}"), dtype))

            return _run(archive.read(f"{folder}data.pkl"), resolve, storage)


def _run(
    content: bytes,
    resolve: pickle_machine.Resolve,
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    if content[:1] != bytes([_PROTO]):
        raise InputError("expected a pickle of protocol 2 to 5, which begins with the byte 0x80")
    machine = Machine(content, resolve, persistent=persistent)
    machine.run(0)
    _expect(len(machine.stack) == 1, "more than one value")
    return machine.stack[0]


@contextmanager
def _one_sentence(path: Path, record: str | None = None) -> Iterator[None]:
    """Say where, and turn whatever a damaged pickle leads to into an ``InputError``."""
    try:
        yield
    except InputError as error:
        raise InputError(error.message, path=path, record=record) from error
    except Exception as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise InputError(f"the pickle is damaged: {reason}", path=path, record=record) from error


def _resolve(module: str, name: str) -> Global:
    """What stands for a global.

    Raises:
        InputError: it is none of those that prediction files need.
    """
    known = _GLOBALS.get((_SAME.get(module, module), name))
    if known is not None:
        return Global(module, name, known)
    if (module, name) == ("numpy", "ndarray") or (module == "torch" and name in _TORCH_STORAGES):
        return Global(module, name)
    if module.partition(".")[0] in FOREIGN_PACKAGES:
        return Global(module, name, create=lambda: Record(f"{module}.{name}"))
    raise InputError(
        f"refused the global {module}.{name}, which no prediction file needs; nothing was executed"
    )


def _expect(fits: bool, what: str) -> None:
    if not fits:
        raise InputError(f"the pickle is damaged: {what}")


def _is_size(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) <= _MAX_DIMENSIONS
        and all(type(size) is int and size >= 0 for size in value)
    )


def _array(raw: Any, dtype: Any, shape: Any, order: str) -> Any:
    """An array over bytes; an array of Python objects becomes the list of its items."""
    _expect(isinstance(dtype, np.dtype) and _is_size(shape), "an array without dtype or shape")
    count = math.prod(shape)
    if dtype.kind == "O":
        _expect(isinstance(raw, list) and len(raw) == count, f"an array of {count} objects")
        return raw
    _expect(isinstance(raw, Raw), "an array without content")
    size = count * dtype.itemsize
    _expect(
        len(raw) == size, f"an array {list(shape)} of {dtype} with {len(raw)} bytes, not {size}"
    )
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if order == "F" else "C")


def _array_from_state(state: Any) -> Any:
    _expect(isinstance(state, tuple) and len(state) == 5, "an array with an unknown state")
    _, shape, dtype, is_fortran, raw = state
    return _array(raw, dtype, shape, "F" if is_fortran else "C")


def _empty_array(arguments: tuple[Any, ...]) -> Pending:
    _expect(
        len(arguments) == 3
        and isinstance(arguments[0], Global)
        and (arguments[0].module, arguments[0].name) == ("numpy", "ndarray"),
        "an array of an unknown class",
    )
    return Pending(_array_from_state)


def _array_over_buffer(arguments: tuple[Any, ...]) -> Any:
    _expect(len(arguments) == 4, "an array with unknown arguments")
    raw, dtype, shape, order = arguments
    return _array(raw, dtype, shape, order)


def _number(arguments: tuple[Any, ...]) -> Any:
    _expect(len(arguments) == 2, "a number with unknown arguments")
    dtype, raw = arguments
    return _array(raw, dtype, (), "C")[()]


def _dtype(arguments: tuple[Any, ...]) -> Pending:
    code = arguments[0] if arguments else None
    if not isinstance(code, str) or not _DTYPE.fullmatch(code):
        raise InputError(f"refused an array of type {code!r}; expected numbers or booleans")

    def build(state: Any) -> np.dtype[Any]:
        _expect(
            isinstance(state, tuple)
            and len(state) >= 5
            and state[1] in ("<", ">", "=", "|")
            and state[2:5] == (None, None, None),
            "a dtype with fields",
        )
        return np.dtype(code).newbyteorder(state[1])

    return Pending(build)


def _encoded(arguments: tuple[Any, ...]) -> bytes:
    """Bytes as protocol 2 stores them: text of the first 256 characters."""
    _expect(
        len(arguments) == 2
        and isinstance(arguments[0], str)
        and arguments[1] in ("latin1", "latin-1"),
        "bytes in an unknown encoding",
    )
    return arguments[0].encode("latin-1")


def _bytes(arguments: tuple[Any, ...]) -> Raw:
    if len(arguments) == 2:
        return _encoded(arguments)
    _expect(not arguments or isinstance(arguments[0], Raw), "bytes with unknown arguments")
    return arguments[0] if arguments else b""


def _items(arguments: tuple[Any, ...]) -> list[Any]:
    items = arguments[0] if arguments else []
    _expect(isinstance(items, list) and len(arguments) <= 1, "a set or dict of unknown items")
    return items


def _set(arguments: tuple[Any, ...]) -> set[Any]:
    return set(pickle_machine.keys(_items(arguments)))


def _ordered_dict(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    items = _items(arguments)
    _expect(
        all(isinstance(item, (list, tuple)) and len(item) == 2 for item in items),
        "a dict without pairs",
    )
    pickle_machine.keys([key for key, _ in items])
    return dict(items)


def _size(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    _expect(len(arguments) == 1 and _is_size(arguments[0]), "a size without numbers")
    return arguments[0]


@dataclass(frozen=True)
class _Storage:
    """The numbers behind PyTorch tensors."""

    values: npt.NDArray[Any]


def _storage(arguments: tuple[Any, ...]) -> _Storage:
    """A storage inside a pickle: bytes that ``torch.save`` wrote in its older form.

    Five pickles (a magic number, a version, a description of the machine, a reference to the
    storage, its key), the number of values in eight bytes, the values.
    """
    _expect(len(arguments) == 1 and isinstance(arguments[0], Raw), "a tensor without content")
    content: Raw = arguments[0]
    machine = Machine(bytes(content[:_TORCH_HEADER]), _resolve, persistent=_storage_type)
    position = 0
    for _ in range(5):
        position = machine.run(position)
    _expect(len(machine.stack) == 5, "a tensor in an unknown form")
    magic, _, system, dtype, _ = machine.stack
    little = isinstance(system, dict) and system.get("little_endian", True) is True
    _expect(
        magic == _TORCH_MAGIC and isinstance(dtype, np.dtype) and little,
        "a tensor in an unknown form",
    )
    count = int.from_bytes(content[position : position + 8], "little")
    raw = content[position + 8 :]
    _expect(len(raw) == count * dtype.itemsize, f"a tensor with {len(raw)} bytes")
    return _Storage(np.frombuffer(raw, dtype))


def _storage_type(reference: Any) -> np.dtype[Any]:
    _expect(
        isinstance(reference, tuple)
        and len(reference) >= 5
        and reference[0] == "storage"
        and isinstance(reference[1], Global)
        and reference[1].module == "torch"
        and reference[1].name in _TORCH_STORAGES,
        "a tensor of an unknown type",
    )
    return np.dtype(_TORCH_STORAGES[reference[1].name])


def _tensor(arguments: tuple[Any, ...], *, expanded: bool = False) -> npt.NDArray[Any]:
    _expect(len(arguments) >= 4 and isinstance(arguments[0], _Storage), "a tensor of nothing")
    storage, offset, size, stride = arguments[:4]
    _expect(
        type(offset) is int
        and offset >= 0
        and _is_size(size)
        and _is_size(stride)
        and len(size) == len(stride),
        "a tensor without size",
    )
    values = storage.values
    count = math.prod(size)
    if not count:
        return np.empty(size, values.dtype)
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    # An expanded tensor repeats values with a stride of 0; copied, it could fill the memory.
    fits = last < len(values) and (expanded or count <= len(values))
    _expect(fits, "a tensor larger than its content")
    return np.lib.stride_tricks.as_strided(
        values[offset:], size, [step * values.itemsize for step in stride], writeable=False
    )


_GLOBALS: Mapping[tuple[str, str], Callable[[tuple[Any, ...]], Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.multiarray", "scalar"): _number,
    ("numpy.core.numeric", "_frombuffer"): _array_over_buffer,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encoded,
    ("builtins", "bytes"): _bytes,
    ("builtins", "bytearray"): _bytes,
    ("builtins", "set"): _set,
    ("builtins", "frozenset"): lambda arguments: frozenset(_set(arguments)),
    ("collections", "OrderedDict"): _ordered_dict,
    ("torch", "Size"): _size,
    ("torch.storage", "_load_from_bytes"): _storage,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
}
"""Every function that a prediction file may name, and what is done in its place."""
