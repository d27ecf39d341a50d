"""A stack machine for pickles that can build plain values only: it has no way to run anything.

Python's own unpickler calls what a file names. This one imports nothing and calls nothing from a
file: a global is a :class:`Global`, looked up in a table of Haystack's own functions, and a name
that the table lacks is refused. So a hostile file can at worst be refused.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from haystack.errors import InputError
from haystack.io.pickle_opcodes import Buffer, Outline, read_opcode, release

_NAME = re.compile(r"[\w.<>]{1,200}")

Raw = bytes | memoryview
"""Bytes of a pickle: copied where they are few, else a read-only view of the file."""


@dataclass(frozen=True)
class Global:
    """What a pickle names: a function or a class, never the real one.

    Args:
        module, name: as the file spells them.
        rebuild: makes a value from the arguments of a call; None where calls are refused.
        create: makes an instance without arguments (``cls.__new__``); None where refused.
    """

    module: str
    name: str
    rebuild: Callable[[tuple[Any, ...]], Any] | None = None
    create: Callable[[], Any] | None = None

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Pending:
    """A value whose state is still to come.

    Args:
        build: makes the value from its state.
    """

    def __init__(self, build: Callable[[Any], Any]) -> None:
        self.build = build
        self.remembered: list[int] = []


class Record:
    """An instance of a class that Haystack does not have: its attributes, and nothing else.

    Args:
        name: of its class, with the module.

    Attributes:
        attributes: by name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.attributes: dict[str, Any] = {}

    def set_state(self, state: Any) -> None:
        """Take the attributes of a pickled state: a dict, or a pair of dicts (``__slots__``)."""
        for part in state if isinstance(state, tuple) and len(state) == 2 else (state,):
            if part is None:
                continue
            if not isinstance(part, dict) or not all(isinstance(key, str) for key in part):
                raise InputError(f"expected the attributes of {self.name} as a dict of names")
            self.attributes.update(part)


Resolve = Callable[[str, str], Global]
"""Module and name -> what stands for it; raises InputError for a name that is refused."""


class Machine:
    """Builds the values of a pickle.

    Args:
        buffer: the bytes.
        resolve: what stands for a global.
        last_use: of :func:`outline`; None = remember everything.
        persistent: makes a value of a persistent id; None where they are refused.
    """

    def __init__(
        self,
        buffer: Buffer,
        resolve: Resolve,
        *,
        last_use: Mapping[int, int] | None = None,
        persistent: Callable[[Any], Any] | None = None,
    ) -> None:
        self.buffer = buffer
        self.resolve = resolve
        self.last_use = last_use
        self.persistent = persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.puts = 0

    def run(self, position: int, end: int | None = None) -> int:
        """Run from a position to ``end``, or past STOP; returns the position reached.

        Raises:
            InputError: a global or a call is refused, or the file is cut short.
        """
        while position != end:
            opcode, begin, after = read_opcode(self.buffer, position)
            if opcode.name == "STOP":
                return after
            _HANDLERS[opcode.name](self, position, begin, after)
            position = after
        return position

    def _bytes(self, begin: int, end: int) -> bytes:
        return bytes(self.buffer[begin:end])

    def _raw(self, _: int, begin: int, end: int) -> None:
        # What fills an array is not copied: an id map in int64 has 27 MB.
        self.stack.append(memoryview(self.buffer)[begin:end])

    def _from_mark(self) -> list[Any]:
        floor = self.marks.pop()
        values = self.stack[floor:]
        del self.stack[floor:]
        return values

    def _remember(self, index: int) -> None:
        self.puts += 1
        if self.last_use is None or index in self.last_use:
            value = self.stack[-1]
            self.memo[index] = value
            if isinstance(value, Pending):
                value.remembered.append(index)

    def _get(self, position: int, begin: int, end: int) -> None:
        index = _unsigned(self._bytes(begin, end))
        self.stack.append(self.memo[index])
        if self.last_use is not None and self.last_use.get(index) == position:
            del self.memo[index]

    def _put(self, _: int, begin: int, end: int) -> None:
        self._remember(_unsigned(self._bytes(begin, end)))

    def _memoize(self, *_: int) -> None:
        self._remember(self.puts)

    def _name(self, _: int, begin: int, end: int) -> None:
        self._resolve(*self._bytes(begin, end - 1).decode().split("\n"))

    def _name_on_stack(self, *_: int) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self._resolve(module, name)

    def _resolve(self, module: Any, name: Any) -> None:
        if not all(isinstance(part, str) and _NAME.fullmatch(part) for part in (module, name)):
            raise InputError("the pickle is damaged: a global without a proper name")
        self.stack.append(self.resolve(module, name))

    def _reduce(self, *_: int) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, Global) or function.rebuild is None:
            raise InputError(f"refused a call of {function_name(function)}; nothing is executed")
        if not isinstance(arguments, tuple):
            raise InputError(f"the pickle is damaged: {function} without arguments")
        self.stack.append(function.rebuild(arguments))

    def _new(self, *_: int) -> None:
        arguments, kind = self.stack.pop(), self.stack.pop()
        if not isinstance(kind, Global) or kind.create is None or arguments != ():
            raise InputError(f"refused to make an instance of {function_name(kind)}")
        self.stack.append(kind.create())

    def _build(self, *_: int) -> None:
        state, value = self.stack.pop(), self.stack[-1]
        if isinstance(value, Record):
            value.set_state(state)
        elif isinstance(value, Pending):
            built = value.build(state)
            self.stack[-1] = built
            for index in value.remembered:
                if self.memo.get(index) is value:
                    self.memo[index] = built
        else:
            raise InputError(f"refused a state for a value of type {type(value).__name__}")

    def _persistent(self, *_: int) -> None:
        if self.persistent is None:
            raise InputError("refused a reference to something outside the pickle")
        self.stack.append(self.persistent(self.stack.pop()))

    def _append(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise InputError("the pickle is damaged: items without a list")
        target.extend(values)

    def _add(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, set):
            raise InputError("the pickle is damaged: items without a set")
        target.update(keys(values))

    def _set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(values) % 2:
            raise InputError("the pickle is damaged: items without a dict")
        target.update(zip(keys(values[::2]), values[1::2], strict=True))

    def _tuple(self, values: list[Any]) -> None:
        self.stack.append(tuple(values))


def keys(values: list[Any]) -> list[Any]:
    """The values as keys of a dict or members of a set: text and numbers only.

    Hashing a deeply nested tuple would exhaust the C stack, which no error handler catches.
    """
    for value in values:
        if not isinstance(value, (str, bytes, int, float, type(None))):
            raise InputError(f"refused a key of type {type(value).__name__}")
    return values


def function_name(value: Any) -> str:
    """How errors call something that a pickle would call."""
    return str(value) if isinstance(value, Global) else f"a value of type {type(value).__name__}"


Handler = Callable[[Machine, int, int, int], None]


def _nothing(machine: Machine, position: int, begin: int, end: int) -> None:
    pass


def _constant(make: Callable[[], Any]) -> Handler:
    return lambda machine, *_: machine.stack.append(make())


def _decoded(decode: Callable[[bytes], Any]) -> Handler:
    return lambda machine, _, begin, end: machine.stack.append(decode(machine._bytes(begin, end)))


def _many(method: Callable[[Machine, list[Any]], None]) -> Handler:
    return lambda machine, *_: method(machine, machine._from_mark())


def _last(method: Callable[[Machine, list[Any]], None], size: int) -> Handler:
    def handle(machine: Machine, *_: int) -> None:
        values = machine.stack[-size:]
        del machine.stack[-size:]
        method(machine, values)

    return handle


def _unsigned(content: bytes) -> int:
    return int.from_bytes(content, "little")


def _signed(content: bytes) -> int:
    return int.from_bytes(content, "little", signed=True)


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")


_HANDLERS: Mapping[str, Handler] = {
    "PROTO": _nothing,
    "FRAME": _nothing,
    "STOP": _nothing,
    "MARK": lambda machine, *_: machine.marks.append(len(machine.stack)),
    "POP": lambda machine, *_: machine.stack.pop(),
    "POP_MARK": _many(lambda machine, values: None),
    "NONE": _constant(lambda: None),
    "NEWTRUE": _constant(lambda: True),
    "NEWFALSE": _constant(lambda: False),
    "BININT": _decoded(_signed),
    "BININT1": _decoded(_unsigned),
    "BININT2": _decoded(_unsigned),
    "LONG1": _decoded(_signed),
    "LONG4": _decoded(_signed),
    "BINFLOAT": _decoded(lambda content: struct.unpack(">d", content)[0]),
    "BINUNICODE": _decoded(_text),
    "SHORT_BINUNICODE": _decoded(_text),
    "BINUNICODE8": _decoded(_text),
    "BINBYTES": Machine._raw,
    "SHORT_BINBYTES": _decoded(bytes),
    "BINBYTES8": Machine._raw,
    "BYTEARRAY8": Machine._raw,
    "EMPTY_LIST": _constant(list),
    "EMPTY_DICT": _constant(dict),
    "EMPTY_SET": _constant(set),
    "EMPTY_TUPLE": _constant(tuple),
    "APPEND": _last(Machine._append, 1),
    "APPENDS": _many(Machine._append),
    "SETITEM": _last(Machine._set_items, 2),
    "SETITEMS": _many(Machine._set_items),
    "ADDITEMS": _many(Machine._add),
    "FROZENSET": _many(lambda machine, values: machine.stack.append(frozenset(keys(values)))),
    "TUPLE": _many(Machine._tuple),
    "TUPLE1": _last(Machine._tuple, 1),
    "TUPLE2": _last(Machine._tuple, 2),
    "TUPLE3": _last(Machine._tuple, 3),
    "GLOBAL": Machine._name,
    "STACK_GLOBAL": Machine._name_on_stack,
    "REDUCE": Machine._reduce,
    "NEWOBJ": Machine._new,
    "BUILD": Machine._build,
    "BINGET": Machine._get,
    "LONG_BINGET": Machine._get,
    "BINPUT": Machine._put,
    "LONG_BINPUT": Machine._put,
    "MEMOIZE": Machine._memoize,
    "BINPERSID": Machine._persistent,
}


def items(buffer: Buffer, resolve: Resolve, plan: Outline) -> Iterator[Any]:
    """Build the items of the outermost list, one at a time."""
    machine = Machine(buffer, resolve, last_use=plan.last_use)
    position = 0
    for end in plan.ends:
        begin, position = position, machine.run(position, end)
        yield machine.stack[-1]
        machine.stack[-1] = None  # the list itself is not kept
        release(buffer, begin, position)
    machine.run(position)
    if not isinstance(machine.stack[-1], list):
        raise InputError("expected a pickled list, one entry an image")
