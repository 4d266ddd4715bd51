"""Messages from strangers: what is sent comes back, and no bytes whatever do more than be refused."""

import json
import random
import struct

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratemesh.engines.envelope import (
    DTYPES,
    EVERYONE,
    HEADER,
    BadMessageError,
    Kind,
    Limits,
    Message,
    open_envelope,
    seal,
)

RUN = bytes(range(16))
BODY = HEADER.size
FEW, MANY = 5_000, 100_000
TENSORS = {
    "V": torch.randn(3, 10),
    "m": torch.tensor([1.0, 0.0, 4.0]),
    "hops": torch.tensor(2, dtype=torch.int32),
    "empty": torch.zeros(0, 4),
    "half": torch.ones(2, 2, dtype=torch.float16),
}


def message(**changes: object) -> Message:
    return Message(Kind.DATA, RUN, 1, 2, 7, 3, 1, "stats", TENSORS)._replace(**changes)


def body(table: object, content: bytes = b"") -> bytes:
    """Return an envelope around a hand-made table."""
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    inner = struct.pack("<Q", len(text)) + text + content
    head = bytearray(seal(message(payload={}))[:BODY])
    head[-8:] = struct.pack("<Q", len(inner))
    return bytes(head) + inner


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_what_is_sealed_comes_back() -> None:
    sent = message(receiver=EVERYONE, incarnation=2**63 - 1, tag="turn in cluster 12")
    got = open_envelope(seal(sent))
    assert got[:-1] == sent[:-1]
    assert got.payload.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert got.payload[name].dtype == tensor.dtype
        assert torch.equal(got.payload[name], tensor)


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=str), ids=str)
def test_every_type_that_may_travel_does(dtype: torch.dtype) -> None:
    sent = torch.arange(6).to(dtype).reshape(2, 3)
    assert torch.equal(open_envelope(seal(message(payload={"x": sent}))).payload["x"], sent)


BAD = {
    "nothing": (b"", "size"),
    "a short header": (b"RMSH" * 4, "size"),
    "another protocol": (b"GET / HTTP/1.1\r\n".ljust(HEADER.size + 10), "no message"),
    "another version": (seal(message())[:4] + b"\x02\x00" + seal(message())[6:], "version"),
    "another kind": (seal(message())[:6] + b"\x09\x00" + seal(message())[8:], "header"),
    "a byte too many": (seal(message()) + b"x", "size"),
    "a byte too few": (seal(message())[:-1], "size"),
    "a tag that is no text": (seal(message(payload={})).replace(b"stats", b"st\xff\xfes"), "header"),
    "a tag that rings": (seal(message(payload={})).replace(b"stats", b"st\x07ts"), "header"),
    "no table": (body(b"")[: BODY + 4], "size"),
    "a table that is no JSON": (body(b"{oops"), "body"),
    "a deep table": (body(b"[" * 100_000), "body"),
    "a list": (body([]), "body"),
    "a long number": (body(b'{"x": ' + b"9" * 5000 + b"}"), "body"),
    "a name twice": (body(b'{"x": {}, "x": {}}'), "body"),
    "metadata": (body({"__metadata__": {"a": "b"}}), "body"),
    "an unknown type": (body({"x": entry("BOOL")}, bytes(8)), "body"),
    "a type that is a list": (body({"x": entry(["F32"])}, bytes(8)), "body"),
    "a negative size": (body({"x": entry(shape=[-2])}, bytes(8)), "body"),
    "a fraction": (body({"x": entry(shape=[2.0])}, bytes(8)), "body"),
    "true as a size": (body({"x": entry(shape=[True, 2])}, bytes(8)), "body"),
    "a huge shape": (body({"x": entry(shape=[2**28] * 8)}, bytes(8)), "body"),
    "many axes": (body({"x": entry(shape=[1] * 9, offsets=[0, 4])}, bytes(4)), "body"),
    "a gap": (body({"x": entry(offsets=[4, 12])}, bytes(12)), "body"),
    "an overlap": (body({"x": entry(), "y": entry()}, bytes(16)), "body"),
    "a rest": (body({"x": entry()}, bytes(9)), "body"),
    "an end beyond the end": (body({"x": entry()}, bytes(4)), "body"),
    "offsets backwards": (body({"x": entry(offsets=[8, 0])}, bytes(8)), "body"),
    "a long name": (body({"x" * 300: entry()}, bytes(8)), "body"),
}


@pytest.mark.parametrize(("data", "reason"), BAD.values(), ids=BAD)
def test_bad_messages_are_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(BadMessageError) as caught:
        open_envelope(data)
    assert caught.value.reason == reason


def test_limits_hold_before_anything_is_allocated() -> None:
    sealed = seal(message())
    for limits in (Limits(body=100), Limits(header=50), Limits(tensors=4), Limits(name=3), Limits(rank=1)):
        with pytest.raises(BadMessageError):
            open_envelope(sealed, limits)


def opened_or_refused(data: bytes) -> bool:
    """Whether a message is accepted; anything but acceptance or BadMessageError is a failure of the test."""
    try:
        got = open_envelope(data)
    except BadMessageError:
        return False
    assert seal_again(got, data)
    return True


def seal_again(got: Message, data: bytes) -> bool:
    """Whether what was read is all that the bytes said: the same fields, and tensors that fill the body exactly."""
    table = int.from_bytes(data[BODY : BODY + 8], "little")
    content = sum(t.numel() * t.element_size() for t in got.payload.values())
    return BODY + 8 + table + content == len(data) and seal(got)[:6] == data[:6]


@settings(max_examples=300)
@given(st.binary(max_size=400))
@example(b"RMSH")
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    assert not opened_or_refused(data)


@settings(max_examples=300)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
        max_leaves=8,
    ),
    st.binary(max_size=16),
)
def test_arbitrary_tables_are_refused_unless_empty(table: object, content: bytes) -> None:
    assert opened_or_refused(body(table, content)) == (table == {} and isinstance(table, dict) and not content)


def mutated(rng: random.Random, sealed: bytes) -> bytes:
    """Return a real message with something wrong: bits, bytes, cuts, doubled parts, or numbers at their limits."""
    data = bytearray(sealed)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = bytes([data[at] ^ 1 << rng.randrange(8)]) if data else b""
            case 1:
                data[at : at + rng.randint(1, 16)] = b""
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, 16))
            case 3:
                data[at:at] = data[rng.randrange(len(data) or 1) :][: rng.randint(1, 64)]
            case 4:
                data[at : at + 8] = rng.choice([b"\xff" * 8, bytes(8), struct.pack("<Q", 2**63)])
            case _:
                data[at : at + 4] = rng.choice([b"1e99", b"-1, ", b"null", b'"":{', b"\x00\xd8]]"])
    return bytes(data)


def fuzz(count: int) -> None:
    """Mutate real messages; those still accepted must differ in tensor values or header fields only."""
    rng = random.Random(6)
    real = [seal(message()), seal(message(payload={})), seal(message(payload={"x": torch.zeros(40)}))]
    accepted = sum(opened_or_refused(mutated(rng, rng.choice(real))) for _ in range(count))
    assert 0 < accepted < count / 2  # flipped bits inside a tensor are for the method to judge


def test_mutated_messages_do_no_harm() -> None:
    fuzz(FEW)


@pytest.mark.faults
def test_many_mutated_messages_do_no_harm() -> None:
    fuzz(MANY)
