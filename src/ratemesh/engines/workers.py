"""Worker processes behind pipes: what a worker is told and what it answers is JSON words and safetensors bytes."""

import importlib
import json
import os
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Protocol

from safetensors.torch import load, save

from ratemesh import errors
from ratemesh.messages.formats import Payload


def to_bytes(payload: Payload) -> bytes:
    """Return named tensors as safetensors bytes."""
    return save({name: tensor.contiguous() for name, tensor in payload.items()})


@dataclass(frozen=True)
class Frame:
    """One piece of what goes through a pipe: words that JSON can hold, or those of an error; and payloads by node."""

    words: Any = None
    payloads: Mapping[int, Payload] = field(default_factory=dict)
    failed: bool = False

    def send(self, connection: Connection) -> None:
        """Write the frame; a payload that goes to many nodes is written once."""
        distinct = {id(payload): payload for payload in self.payloads.values()}
        places = list(distinct)
        by_node = [(node, places.index(id(payload))) for node, payload in self.payloads.items()]
        connection.send_bytes(json.dumps([self.words, self.failed, by_node, len(places)]).encode())
        for payload in distinct.values():
            connection.send_bytes(to_bytes(payload))

    @classmethod
    def receive(cls, connection: Connection) -> "Frame":
        """Read a frame; EOFError when the other side is gone."""
        words, failed, by_node, count = json.loads(connection.recv_bytes())
        contents = [load(connection.recv_bytes()) for _ in range(count)]
        return cls(words, {node: contents[place] for node, place in by_node}, failed)


def failure(error: BaseException) -> Frame:
    """Put an error into words; our own keep their kind, a bug brings its traceback along."""
    if isinstance(error, errors.RatemeshError):
        return Frame([type(error).__name__, str(error)], failed=True)
    return Frame(["", "".join(traceback.format_exception(error))], failed=True)


def raised(frame: Frame) -> Frame:
    """Return a frame; raise the error that it tells of, if it does."""
    if not frame.failed:
        return frame
    kind, message = frame.words
    if not kind:
        raise RuntimeError(f"in a worker process:\n{message}")
    known = {"InputError": errors.InputError, "NonFiniteError": errors.NonFiniteError}
    raise known.get(kind, errors.RatemeshError)(message)


def child_environment(threads: int) -> dict[str, str]:
    """Return what a process of ours must know: where modules are, and how many threads it may use."""
    path = os.pathsep.join(filter(None, sys.path))
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def end(process: "subprocess.Popen[Any]", seconds: float) -> None:
    """Wait until a process has ended; kill it if it takes longer than this."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Host(Protocol):
    """What a worker process holds: every frame that it is told gives one answer."""

    def obey(self, told: Frame) -> Frame:
        """Carry out what the run tells it."""


class Worker:
    """A `Host` in a process of its own, made there by its class from arguments that JSON can hold, `nodes` among them.

    The process is started anew, not forked: no torch state is inherited, and a caller's script
    needs no `if __name__ == "__main__"`. If this process dies, the pipe closes and the worker ends.
    """

    def __init__(self, host: type[Host], threads: int, arguments: Mapping[str, Any]) -> None:
        self.nodes: list[int] = arguments["nodes"]
        ours, theirs = Pipe()
        self.connection: Connection = ours
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})"],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **child_environment(threads)},
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.tell(Frame([host.__module__, host.__qualname__, threads, arguments]))

    def tell(self, frame: Frame) -> None:
        """Have the worker do something; `hear` waits for its answer."""
        try:
            frame.send(self.connection)
        except OSError:
            raise self._died() from None

    def hear(self) -> Frame:
        """Wait for the next answer; one that tells of an error is raised."""
        try:
            return raised(Frame.receive(self.connection))
        except (EOFError, OSError):
            raise self._died() from None

    def close(self) -> None:
        """Close the pipe: the worker ends by itself."""
        self.connection.close()
        end(self.process, 5)

    def _died(self) -> errors.RatemeshError:
        code = self.process.wait()
        return errors.RatemeshError(
            f"the worker process of nodes {self.nodes} ended with exit code {code}. "
            "Out of memory is the usual cause: try fewer engine.workers. The run can be resumed."
        )


@contextmanager
def started(host: type[Host], threads: int, hosted: Sequence[Mapping[str, Any]]) -> Iterator[list[Worker]]:
    """Start a worker for every host's arguments, end them on the way out."""
    with ExitStack() as stack:
        workers = []
        for arguments in hosted:  # start all, then wait: they import torch side by side
            workers.append(Worker(host, threads, arguments))
            stack.callback(workers[-1].close)
        hear_all(workers)
        yield workers


def tell_all(workers: Sequence[Worker], words: Sequence[Any]) -> list[Frame]:
    """Have all workers do something side by side; return their answers in the same order."""
    for worker in workers:
        worker.tell(Frame(words))
    return hear_all(workers)


def hear_all(workers: Sequence[Worker]) -> list[Frame]:
    """Return the next answer of every worker, in their order; whoever fails first is heard first."""
    owing = {worker.connection: i for i, worker in enumerate(workers)}
    frames: dict[int, Frame] = {}
    while owing:
        for ready in wait(list(owing)):
            i = owing.pop(ready)  # type: ignore[call-overload]
            frames[i] = workers[i].hear()
    return [frames[i] for i in range(len(workers))]


def serve(descriptor: int) -> None:
    """Be a worker process: make the host, say so, and obey until the pipe closes."""
    connection = Connection(descriptor)
    told: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, told), daemon=True).start()
    try:
        module, name, threads, arguments = told.get().words
        import torch

        torch.set_num_threads(threads)
        host: Host = getattr(importlib.import_module(module), name)(**arguments)
        Frame().send(connection)
        while True:
            host.obey(told.get()).send(connection)
    except Exception as error:  # every failure belongs to the run, which decides what to show
        failure(error).send(connection)


def _listen(connection: Connection, told: "queue.SimpleQueue[Frame]") -> None:
    """Take frames off the pipe at all times, so that neither end ever blocks the other.

    When the run is gone, so is the reason for this process: it ends at once, in the middle of whatever.
    """
    while True:
        try:
            told.put(Frame.receive(connection))
        except (EOFError, OSError):
            os._exit(0)
