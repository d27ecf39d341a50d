from __future__ import annotations

import collections
import functools
import io
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import tracemalloc
import types

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from haystack.errors import InputError
from haystack.io import pickle_machine, pickle_opcodes
from haystack.io.restricted_pickle import PickledList

MODULE = "openpsg.models.relation_heads.approaches.relation_util"
PROTOCOLS = (2, 3, 4, 5)


def foreign_class(module, name):
    """A class that claims to live in a module which does not exist."""
    return type(name, (), {"__module__": module})


def dumps(value, protocol, *classes):
    """The pickle of a value; the modules of its classes exist only while it is written."""
    names = []
    for kind in classes:
        parts = kind.__module__.split(".")
        names += [".".join(parts[: end + 1]) for end in range(len(parts))]
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    for kind in classes:
        setattr(sys.modules[kind.__module__], kind.__name__, kind)
    try:
        return pickle.dumps(value, protocol=protocol)
    finally:
        for name in set(names):
            del sys.modules[name]


def read(path, content):
    path.write_bytes(content)
    return list(PickledList(path))


RESULT = foreign_class(MODULE, "Result")


def result(**attributes):
    instance = RESULT()
    instance.__dict__.update(attributes)
    return instance


def sample(number):
    generator = np.random.default_rng(number)
    shared = generator.random((3, 4)).astype(np.float32)
    return {
        "bool": generator.random((2, 5, 6)) > 0.5,
        "shared": shared,
        "again": shared,
        "columns first": np.asfortranarray(generator.random((3, 5))),
        "transposed": shared.T,
        "big-endian": np.arange(4, dtype=">i4"),
        "half": np.float16([1, 2]),
        "nothing": np.zeros((0, 5), dtype=np.float32),
        "point": np.array(3),
        "numbers": [np.float32(1.5), np.int64(-4), np.bool_(True), -5, 2**70, 3_000_000_000, 0.25],
        "text": ["", "Häß", "\ud800", "x" * 300],
        "bytes": [b"", b"\xff\x00", b"z" * 300, bytearray(b"ab")],
        "sets": [{1, 2}, frozenset({"a"})],
        "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), (None, True, False)],
        "dict": {"k": {"nested": [1, {"deep": []}]}, 3: "three"},
        "many": list(range(2500)),
    }


def assert_same(found, wanted):
    if isinstance(wanted, np.ndarray):
        assert isinstance(found, np.ndarray)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
        assert found.shape == wanted.shape
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            assert_same(found[key], wanted[key])
    elif isinstance(wanted, (list, tuple)):
        assert type(found) is type(wanted)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert found == wanted


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("count", [0, 1, 2, 1003])
def test_plain_values_and_arrays_come_back(tmp_path, protocol, count):
    few = [sample(number) for number in range(min(count, 2))]
    wanted = few + [{"n": number} for number in range(count - len(few))]
    path = tmp_path / "p.pkl"
    path.write_bytes(pickle.dumps(wanted, protocol=protocol))
    items = PickledList(path)
    assert len(items) == count
    for _ in range(2):  # can be read again
        assert_same(list(items), wanted)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_foreign_objects_become_records(tmp_path, protocol):
    masks = foreign_class("mmdet.core.mask.structures", "BitmapMasks")()
    masks.__dict__.update(height=2, masks=np.ones((1, 2, 2), dtype=np.uint8))
    one = result(labels=np.array([1, 2]), masks=masks, none=None)
    one.itself = one
    found = read(tmp_path / "p.pkl", dumps([one, one], protocol, RESULT, type(masks)))
    assert [item.name for item in found] == [f"{MODULE}.Result"] * 2
    attributes = found[0].attributes
    assert list(attributes) == ["labels", "masks", "none", "itself"]
    assert attributes["itself"] is found[0]
    assert attributes["masks"].name == "mmdet.core.mask.structures.BitmapMasks"
    assert_same(attributes["masks"].attributes["masks"], np.ones((1, 2, 2), dtype=np.uint8))


def test_slots_are_attributes_too(tmp_path):
    kind = type("Slotted", (), {"__module__": "mmcv.x", "__slots__": ("a",)})
    instance = kind()
    instance.a = 3
    (found,) = read(tmp_path / "p.pkl", dumps([instance], 2, kind))
    assert found.attributes == {"a": 3}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.tensor([5, 6, 7])[1:],
        torch.zeros(0, 5),
        torch.tensor(2.5),
        torch.tensor([True, False]),
        torch.arange(6, dtype=torch.float16).reshape(2, 3)[:, ::2],
    ],
    ids=["transposed", "slice", "empty", "scalar", "bool", "strided"],
)
def test_tensors_become_arrays(tmp_path, protocol, tensor):
    size = torch.Size([3, 4])
    found = read(tmp_path / "p.pkl", pickle.dumps([tensor, tensor, size], protocol=protocol))
    assert_same(found, [tensor.numpy(), tensor.numpy(), (3, 4)])


class Call:
    """Pickles as a call of ``function`` with ``arguments``."""

    def __init__(self, function, *arguments, state=None):
        self.reduction = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.reduction


def storage_bytes(tensor):
    """What a tensor's pickle holds of its numbers."""
    for opcode, argument, _ in pickletools.genops(pickle.dumps(tensor, protocol=4)):
        if opcode.name in ("BINBYTES", "SHORT_BINBYTES"):
            return argument
    raise AssertionError("no storage")


def rebuilt(content, offset=0, size=(4,), stride=(1,)):
    storage = Call(torch.storage._load_from_bytes, content)
    return Call(torch._utils._rebuild_tensor_v2, storage, offset, size, stride, False, {})


def test_a_tensor_of_an_accelerator_is_read_without_one(tmp_path):
    content = storage_bytes(torch.arange(4.0))
    moved = content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
    assert moved != content
    (found,) = read(tmp_path / "p.pkl", pickle.dumps([rebuilt(moved)]))
    assert_same(found, np.arange(4, dtype=np.float32))


def test_damaged_tensors_are_errors(tmp_path):
    good = storage_bytes(torch.arange(4.0))
    for broken in (
        rebuilt(good, offset=1),
        rebuilt(good, size=(5,)),
        rebuilt(good, size=(2**60, 2**60), stride=(0, 0)),
        rebuilt(good, stride=(-1,)),
        rebuilt(good, size=(2, 2)),
        rebuilt(good[:-1]),
        rebuilt(good + b"\0"),
        rebuilt(b""),
        rebuilt(good[:40]),
        rebuilt(b"\x80\x02](" + b"]" * 10_000 + b"e." + good),
        rebuilt(good.replace(b"FloatStorage", b"BlobbStorage")),
        rebuilt(good.replace(b"storage", b"gtorage", 1)),
        rebuilt(good.replace(b"q\x02\x88X", b"q\x02\x89X")),  # big-endian
        Call(torch._utils._rebuild_tensor_v2, 1, 0, (4,), (1,), False, {}),
    ):
        with pytest.raises(InputError, match=r"entry 0: (the pickle|refused)"):
            read(tmp_path / "p.pkl", pickle.dumps([broken]))


def mark(path):
    """Something to run that leaves a trace."""
    return Call(os.system, f"touch {path}")


def evil(path):
    """Names and calls of which none may be carried out; each would create ``path``."""
    code = f"open({str(path)!r}, 'w').close()"
    command = ["touch", str(path)]
    return {
        "os.system": mark(path),
        "subprocess": Call(subprocess.call, command),
        "eval": Call(eval, code),
        "exec": Call(exec, code),
        "import": Call(__import__, "antigravity"),
        "getattr": Call(getattr, {}, "clear"),
        "partial": Call(functools.partial, os.system, f"touch {path}"),
        "nested": [{"a": ({"b": mark(path)},)}],
        "in a set": Call(set, [mark(path)]),
        "as an argument": Call(collections.OrderedDict, [("a", mark(path))]),
        "in a state": Call(np.dtype, "f4", False, True, state=(3, "<", mark(path))),
        "open": Call(open, str(path), "w"),
        "pickle": Call(pickle.loads, pickle.dumps(mark(path))),
        "torch.load": Call(torch.load, io.BytesIO(b"x")),
        "numpy.load": Call(np.load, str(path)),
        "function": os.system,
        "class": subprocess.Popen,
        "foreign class called": Call(RESULT, 1),
        "exit": Call(sys.exit, 0),
        "breakpoint": Call(breakpoint),
        "in a tensor": rebuilt(pickle.dumps(mark(path), protocol=2) * 5),
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", sorted(evil("x")))
def test_nothing_is_executed(tmp_path, protocol, name):
    trace = tmp_path / "trace"
    value = evil(trace)[name]
    before = set(sys.modules)
    with pytest.raises(InputError, match=r"p\.pkl, entry 1: (refused|the pickle)") as caught:
        read(tmp_path / "p.pkl", dumps([{"good": 1}, value], protocol, RESULT))
    assert "\n" not in str(caught.value)
    assert not trace.exists()
    assert "antigravity" not in sys.modules
    assert set(sys.modules) - before <= {"torch.storage"}


def test_the_refused_global_is_named(tmp_path):
    with pytest.raises(InputError, match=r"refused the global (posix|nt)\.system, which"):
        read(tmp_path / "p.pkl", pickle.dumps([mark("x")]))
    with pytest.raises(InputError, match=r"refused a call of openpsg\..*\.Result"):
        read(tmp_path / "p.pkl", dumps([Call(RESULT, 1)], 2, RESULT))


def opcodes(*parts):
    """A pickle by hand."""
    return b"\x80\x04" + b"".join(parts)


HAND_MADE = {
    "call of a record": opcodes(b"](copenpsg.x\nA\n)\x81)Re."),
    "call of a list": opcodes(b"](])Re."),
    "call of a string": opcodes(b"](\x8c\x02os)Re."),
    "call of an array": opcodes(b"](cnumpy\ndtype\n\x8c\x02f4\x85R)Re."),
    "instance of a function": opcodes(b"](cnumpy\ndtype\n)\x81e."),
    "instance with arguments": opcodes(b"](copenpsg.x\nA\nK\x01\x85\x81e."),
    "state of a dict": opcodes(b"](}}be."),
    "state of a string": opcodes(b"](\x8c\x01a}be."),
    "state with numbers for names": opcodes(b"](copenpsg.x\nA\n)\x81}K\x01K\x02sbe."),
    "global from numbers": opcodes(b"](K\x01K\x02\x93e."),
    "global of a dotted name": opcodes(b"](\x8c\x08builtins\x8c\x0deval.__call__\x93e."),
    "memo never written": opcodes(b"](h\x07e."),
    "memo read twice, with a call": opcodes(b"](cos\nsystem\nq\x000h\x00)Re."),
    "persistent id": opcodes(b"](\x8c\x01aQe."),
    "extension": opcodes(b"](\x82\x01e."),
    "old instance": opcodes(b"]((ios\nsystem\ne."),
    "out of band": opcodes(b"](\x97e."),
    "text opcode": opcodes(b"](I1\ne."),
    "unknown opcode": opcodes(b"](\xffe."),
    "pop of nothing": opcodes(b"0]."),
    "pop of a mark": opcodes(b"](0e."),
    "items without a mark": opcodes(b"]e."),
    "items without a list": opcodes(b"](}(K\x01e e."),
    "odd dict": opcodes(b"](}(K\x01ue."),
    "unhashable key": opcodes(b"](}]K\x01se."),
    "deep key": opcodes(b"](}", b")" + b"\x85" * 100_000, b"K\x01se."),
    "deep member": opcodes(b"](\x8f(", b")" + b"\x85" * 100_000, b"\x90e."),
    "deep frozen member": opcodes(b"]((", b")" + b"\x85" * 100_000, b"\x91e."),
    "deep ordered key": opcodes(
        b"](ccollections\nOrderedDict\n](", b")" + b"\x85" * 100_000, b"K\x01\x86e\x85Re."
    ),
}


@pytest.mark.parametrize("name", sorted(HAND_MADE))
def test_hand_made_pickles_are_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"p\.pkl.*: ") as caught:
        read(tmp_path / "p.pkl", HAND_MADE[name])
    assert "\n" not in str(caught.value)


def array_state(shape, dtype, raw):
    reconstruct = np.zeros(1).__reduce__()[0]
    return [Call(reconstruct, np.ndarray, (0,), b"b", state=(1, shape, dtype, False, raw))]


@pytest.mark.parametrize(
    ("shape", "dtype", "raw", "message"),
    [
        ((3,), np.dtype("f4"), b"1234", r"an array \[3\] of float32 with 4 bytes, not 12"),
        ((2**40, 2**40), np.dtype("f4"), b"1234", "with 4 bytes"),
        ((-1,), np.dtype("f4"), b"1234", "without dtype or shape"),
        ((1,) * 40, np.dtype("f4"), b"1234", "without dtype or shape"),
        ([1], np.dtype("f4"), b"1234", "without dtype or shape"),
        ((1,), "f4", b"1234", "without dtype or shape"),
        ((1,), np.dtype("f4"), [1.0], "without content"),
        ((2,), np.dtype(object), [1], "an array of 2 objects"),
        ((1,), np.dtype("S4"), b"1234", "refused an array of type 'S4'"),
        ((1,), np.dtype([("a", "f4")]), b"1234", "refused an array of type 'V4'"),
        ((1,), np.dtype("M8[s]"), b"12345678", "refused an array of type 'M8'"),
    ],
)
def test_arrays_that_do_not_fit_their_bytes_are_errors(tmp_path, shape, dtype, raw, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path / "p.pkl", pickle.dumps(array_state(shape, dtype, raw)))


def test_an_array_of_objects_is_a_list(tmp_path):
    values = np.empty(2, dtype=object)
    values[:] = [{"a": 1}, None]
    assert read(tmp_path / "p.pkl", pickle.dumps([values])) == [[{"a": 1}, None]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot read it as a pickle"),
        (b"PK\x03\x04 a ZIP", "begins with the byte 0x80, got 0x50"),
        (pickle.dumps([1], protocol=0), "begins with the byte 0x80"),
        (pickle.dumps({"a": 1}), "expected a pickled list, one entry an image"),
        (pickle.dumps(([1],)), "expected a pickled list"),
        (pickle.dumps(np.arange(3)), "expected a pickled list"),
        (opcodes(b"]0K\x01."), "expected a pickled list"),
        (opcodes(b"](K\x01e\x85."), "expected a pickled list"),
        (opcodes(b".") + b"]", "expected a pickled list"),
    ],
)
def test_what_is_no_pickled_list_is_an_error(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path / "p.pkl", content)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"no\.pkl: cannot read it as a pickle"):
        PickledList(tmp_path / "no.pkl")


@pytest.mark.parametrize("protocol", [2, 4])
def test_every_truncation_is_an_error(tmp_path, protocol):
    content = dumps([result(a=np.arange(3), b="x"), result(c={"d": 1})], protocol, RESULT)
    for size in range(len(content)):
        with pytest.raises(InputError):
            read(tmp_path / "p.pkl", content[:size])


def test_sizes_beyond_the_file_are_not_reserved(tmp_path):
    tracemalloc.start()
    for opcode in (b"\x8e", b"\x8d", b"\x96"):
        with pytest.raises(InputError, match="cut short"):
            read(tmp_path / "p.pkl", opcodes(b"](", opcode, struct.pack("<Q", 2**50), b"e."))
    with pytest.raises(InputError, match="cut short"):
        read(tmp_path / "p.pkl", opcodes(b"](B", struct.pack("<I", 2**32 - 1), b"e."))
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_floods_of_opcodes_are_refused_before_anything_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(pickle_opcodes, "MAX_OPCODES", 1000)
    monkeypatch.setattr(pickle_opcodes, "MAX_STACK", 2000)
    with pytest.raises(InputError, match="an entry of the pickle takes more than 1000 opcodes"):
        PickledList(_written(tmp_path, opcodes(b"](}](", b"]" * 1500, b"ee.")))
    flood = b"](" + b"]" * 600 + b"e"
    for content in (
        opcodes(b"]", flood, flood, b"0(K\x01e."),  # before the first entry
        opcodes(b"](K\x01e(", flood, flood, b"0K\x01e."),  # between entries
        opcodes(b"](K\x01e", flood, flood, b"0."),  # after the last
    ):
        with pytest.raises(InputError, match="an entry of the pickle takes more than 1000"):
            PickledList(_written(tmp_path, content))
    with pytest.raises(InputError, match="a stack of more than 2000 values"):
        PickledList(_written(tmp_path, opcodes(b"](", b"]" * 2500, b"e.")))
    many = pickle.dumps([list(range(400)) for _ in range(1500)])  # so many entries may
    assert len(PickledList(_written(tmp_path, many))) == 1500


def _written(folder, content):
    path = folder / "flood.pkl"
    path.write_bytes(content)
    return path


def test_memory_holds_one_item_whatever_the_number(tmp_path):
    def peak(count):
        items = []
        for number in range(count):
            shared = np.full((100, 100), number, dtype=np.int64)
            items.append({"a": shared, "b": shared})  # asked for again
        path = _written(tmp_path, pickle.dumps(items, protocol=2))
        del items
        tracemalloc.start()
        assert sum(int(item["b"][0, 0]) for item in PickledList(path)) == sum(range(count))
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    assert peak(60) < 1.5 * peak(6)


def outcome(path, content):
    """The message if the pickle is refused; any other exception fails the test."""
    try:
        read(path, content)
    except InputError as error:
        return str(error)
    return ""


def test_every_opcode_that_is_read_is_understood():
    names = {opcode.name for opcode in pickle_opcodes.OPCODES.values()}
    assert names == set(pickle_machine._HANDLERS)


FUZZED = [
    dumps([result(a=np.arange(3), b=[1.5, {"x": (1, 2)}]), result(a=None)], protocol, RESULT)
    for protocol in PROTOCOLS
] + [pickle.dumps([torch.arange(3), {"a": {1, 2}}, np.float32(2)], protocol=2)]


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.sampled_from(FUZZED),
    edits=st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 3), st.binary(max_size=4)), max_size=4
    ),
)
def test_mutated_pickles_are_read_or_refused(tmp_path, content, edits):
    data = bytearray(content)
    for place, cut, inserted in edits:
        place %= len(data) + 1
        data[place : place + cut] = inserted
    assert "\n" not in outcome(tmp_path / "p.pkl", bytes(data))


@settings(max_examples=300)
@given(
    parts=st.lists(
        st.sampled_from([bytes([code]) for code in pickle_opcodes.OPCODES])
        | st.sampled_from(
            [b"K\x01", b"\x8c\x02os", b"cos\nsystem\n", b"q\x00", b"h\x00", b"](", b"e", b"a"]
        ),
        max_size=30,
    )
)
def test_random_opcodes_are_read_or_refused(tmp_path_factory, parts):
    path = tmp_path_factory.getbasetemp() / "random.pkl"
    assert "\n" not in outcome(path, opcodes(b"](", *parts, b"e."))
