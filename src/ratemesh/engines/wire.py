"""Frames between a run and its worker processes: a JSON header, then tensors as safetensors bytes."""

import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from safetensors.torch import load, save

from ratemesh import errors
from ratemesh.messages.formats import Payload


@dataclass(frozen=True)
class Frame:
    """One message: what it is, some words, and payloads by node."""

    kind: str
    text: str = ""
    node: int = -1
    number: int = 0
    peers: tuple[int, ...] = ()
    payloads: Mapping[int, Payload] = field(default_factory=dict)


def encode(payload: Payload) -> bytes:
    """Return named tensors as safetensors bytes."""
    return save({name: tensor.contiguous() for name, tensor in payload.items()})


def decode(content: bytes) -> Payload:
    """Read safetensors bytes; nothing in them is executed."""
    return load(content)


def send(connection: Connection, frame: Frame) -> None:
    """Write a frame."""
    distinct = {id(payload): payload for payload in frame.payloads.values()}  # a broadcast is sent once
    places = list(distinct)
    header = {
        "kind": frame.kind,
        "text": frame.text,
        "node": frame.node,
        "number": frame.number,
        "peers": frame.peers,
        "payloads": [(node, places.index(id(payload))) for node, payload in frame.payloads.items()],
        "blobs": len(places),
    }
    connection.send_bytes(json.dumps(header).encode())
    for payload in distinct.values():
        connection.send_bytes(encode(payload))


def receive(connection: Connection) -> Frame:
    """Read a frame; EOFError when the other side is gone."""
    header = json.loads(connection.recv_bytes())
    blobs = [decode(connection.recv_bytes()) for _ in range(header["blobs"])]
    payloads = {node: blobs[place] for node, place in header["payloads"]}
    return Frame(header["kind"], header["text"], header["node"], header["number"], tuple(header["peers"]), payloads)


def error_frame(error: BaseException) -> Frame:
    """Put an error into words; our own keep their kind, a bug brings its traceback along."""
    if isinstance(error, errors.RatemeshError):
        return Frame("error", json.dumps([type(error).__name__, str(error)]))
    return Frame("error", json.dumps(["", "".join(traceback.format_exception(error))]))


def error(frame: Frame) -> Exception:
    """Return the error that a frame tells of, ready to be raised."""
    kind, message = json.loads(frame.text)
    cls = {"InputError": errors.InputError, "NonFiniteError": errors.NonFiniteError}.get(kind)
    if cls is not None:
        return cls(message)
    return errors.RatemeshError(message) if kind else RuntimeError(f"in a worker process:\n{message}")
