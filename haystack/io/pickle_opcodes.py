"""The opcodes of a pickle, read without carrying them out.

A first pass over a pickle, which builds nothing, finds where each item of the outermost list ends,
and which remembered values are asked for again and when for the last time. So a second pass can
build one item after the other and forget what is no longer needed.
"""

from __future__ import annotations

import mmap
import pickletools
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from haystack.errors import InputError

Buffer = bytes | mmap.mmap

MAX_OPCODES = 1_000_000
"""Opcodes of one item; an OpenPSG result takes some ten thousand."""

MAX_STACK = 1_000_000
"""Values on the stack at once."""


# What Python writes with the protocols 2 to 5. Others are text, need code to run (INST, OBJ, EXT)
# or point outside the file.
_WRITTEN = frozenset(
    (
        *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE"),
        *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
        *("EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS"),
        *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("EMPTY_SET", "ADDITEMS", "FROZENSET"),
        *("GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD", "BINPERSID"),
        *("BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "MEMOIZE"),
    )
)
_LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: struct.Struct("<B"),
    pickletools.TAKEN_FROM_ARGUMENT4: struct.Struct("<i"),
    pickletools.TAKEN_FROM_ARGUMENT4U: struct.Struct("<I"),
    pickletools.TAKEN_FROM_ARGUMENT8U: struct.Struct("<Q"),
}
_PIECE = 2**24
_GETS = ("BINGET", "LONG_BINGET")


@dataclass(frozen=True, slots=True)
class Opcode:
    """How an opcode is stored and what it does to the height of the stack.

    Args:
        name: in ``pickletools``.
        size: bytes of its argument, or one of ``pickletools``' codes below 0.
        from_mark: whether it takes everything down to the last mark.
        pops: values that it takes (below that mark).
        pushes: values that it leaves.
    """

    name: str
    size: int
    from_mark: bool
    pops: int
    pushes: int

    @classmethod
    def of(cls, info: pickletools.OpcodeInfo) -> Opcode:
        """From the description in Python's library."""
        from_mark = pickletools.markobject in info.stack_before
        taken = info.stack_before
        pops = taken.index(pickletools.markobject) if from_mark else len(taken)
        size = 0 if info.arg is None else info.arg.n
        return cls(info.name, size, from_mark, pops, len(info.stack_after))


OPCODES = {ord(info.code): Opcode.of(info) for info in pickletools.opcodes if info.name in _WRITTEN}
"""By their byte."""

_NAMES = {ord(info.code): info.name for info in pickletools.opcodes}


def read_opcode(buffer: Buffer, position: int) -> tuple[Opcode, int, int]:
    """The opcode at a position, and where its argument begins and ends."""
    if position >= len(buffer):
        raise InputError("the pickle is cut short")
    opcode = OPCODES.get(buffer[position])
    if opcode is None:
        name = _NAMES.get(buffer[position])
        what = f"the opcode {name}" if name else f"the byte 0x{buffer[position]:02x}"
        raise InputError(
            f"refused {what} at byte {position}, which Python's pickle does not write for plain "
            "values with the protocols 2 to 5; write the file again with protocol 4"
        )
    begin = position + 1
    if opcode.size >= 0:
        end = begin + opcode.size
    elif opcode.name == "GLOBAL":
        end = _line_end(buffer, _line_end(buffer, begin))
    else:
        length = _LENGTHS[opcode.size]
        if begin + length.size > len(buffer):
            raise InputError("the pickle is cut short")
        size = length.unpack(buffer[begin : begin + length.size])[0]
        begin += length.size
        end = begin + max(size, 0)
    if end > len(buffer):
        raise InputError("the pickle is cut short")
    return opcode, begin, end


def _line_end(buffer: Buffer, begin: int) -> int:
    end = buffer.find(b"\n", begin)
    if end < 0:
        raise InputError("the pickle is cut short")
    return end + 1


@dataclass(frozen=True)
class Outline:
    """What a first pass found.

    Args:
        is_list: whether the pickle is a list.
        ends: where each item of the list is complete, positions in the buffer, ascending.
        last_use: remembered value -> position of the opcode that asks for it last.
    """

    is_list: bool
    ends: tuple[int, ...]
    last_use: Mapping[int, int] = field(default_factory=dict)


def release(buffer: Buffer, begin: int, end: int) -> None:
    """Give back the pages of a mapped file that were read; the system would count them as used."""
    begin -= begin % mmap.PAGESIZE
    end -= end % mmap.PAGESIZE
    if isinstance(buffer, mmap.mmap) and hasattr(buffer, "madvise") and end > begin:
        buffer.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def outline(buffer: Buffer) -> Outline:
    """Find the items of the outermost list and the uses of remembered values; build nothing.

    Raises:
        InputError: no pickle, a refused opcode, or more of them in one item than is plausible.
    """
    position, released, height, number, settled = 0, 0, 0, 0, 0
    marks: list[int] = []
    last_use: dict[int, int] = {}
    ends: list[int] = []
    # Where, and after how many opcodes, the stack last had each height up to the present one. So
    # when a batch is appended, the heights of its items tell where each of them was complete.
    levels = [(0, 0)]
    first = ""
    while True:
        opcode, begin, end = read_opcode(buffer, position)
        if opcode.name in _GETS:
            last_use[int.from_bytes(buffer[begin:end], "little")] = position
        elif opcode.name == "STOP":
            break
        before, floor = height, _floor(opcode, height, marks)
        height = floor - opcode.pops
        if height < 0 or (marks and height <= marks[-1]):
            raise InputError(f"the pickle is damaged: no values for {opcode.name}")
        if opcode.name == "MARK":
            marks.append(height)
        if height == 0 and opcode.pushes and not first:
            first = opcode.name
        height += opcode.pushes
        if height == 1 and opcode.name in ("APPEND", "APPENDS"):
            items = levels[(floor if opcode.from_mark else 0) + 2 : before + 1]
            for item, count in items:
                _refuse_flood(count - settled)
                ends.append(item)
                settled = count
        if height > MAX_STACK:
            raise InputError(f"the pickle needs a stack of more than {MAX_STACK} values")
        number += 1
        del levels[height:]
        levels.append((end, number))
        position = end
        if position - released > _PIECE:
            release(buffer, released, position)
            released = position
    _refuse_flood(number - settled)
    return Outline(first == "EMPTY_LIST" and height == 1, tuple(ends), last_use)


def _floor(opcode: Opcode, height: int, marks: list[int]) -> int:
    """The height from which an opcode takes its fixed number of values."""
    if not opcode.from_mark:
        return height
    if not marks:
        raise InputError(f"the pickle is damaged: no mark for {opcode.name}")
    return marks.pop()


def _refuse_flood(count: int) -> None:
    if count > MAX_OPCODES:
        raise InputError(
            f"an entry of the pickle takes more than {MAX_OPCODES} opcodes, which no prediction "
            "file needs"
        )
