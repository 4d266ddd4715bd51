"""Where a node computes: words such as "auto" and "cuda:1", and copies to a device that nobody waits for."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator
from torch import Tensor, nn

from ratemesh.errors import InputError

CPU = torch.device("cpu")

Precision = Literal["float32", "bf16"]
"""What encoders compute in; statistics and losses are float32 either way."""

_WORD = re.compile(r"auto|cpu|mps|cuda(:\d{1,4})?")
_REMEDY = "Write device = 'auto', 'cpu', 'cuda', 'cuda:1' or 'mps', or a list of these, dealt out to the nodes in turn."


def _words(given: Any) -> Any:
    """Refuse what is no device or list of devices; whether this machine has it is seen where a node is made."""
    words = given if isinstance(given, list) else [given]
    for word in words:
        if not isinstance(word, str) or not _WORD.fullmatch(word):
            raise InputError(f"device must be a word that names one; got {word!r}. {_REMEDY}")
    if not words:
        raise InputError(f"device must name at least one; got an empty list. {_REMEDY}")
    return given


Devices = Annotated[str | list[str], BeforeValidator(_words)]
"""The type of a setting that names a device for all nodes, or several to deal out."""


def available() -> list[str]:
    """Return the devices of this machine that torch can use, the CPU last."""
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return [*gpus, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def resolve_device(word: str, node: int = 0) -> torch.device:
    """Return the device that a word stands for on this machine, with its number; refuse one that is not there.

    Args:
        word: "auto" is a GPU of CUDA, or else Apple's (mps), or else the CPU; "cuda" is the first GPU that this process
            sees, which in a Ray actor is the one reserved for it.
        node: several GPUs are dealt out to the nodes in turn with "auto".
    """
    _words(word)
    there = available()
    if word == "auto":
        gpus = [name for name in there if name.startswith("cuda")]
        return torch.device(gpus[node % len(gpus)] if gpus else there[0])
    name = "cuda:0" if word == "cuda" else word
    if name not in there:
        build = "" if torch.version.cuda or name == "mps" else ", and its torch is built without CUDA"
        raise InputError(
            f"device must be one that the machine of node {node} has; got '{word}', it has {', '.join(there)}{build}. "
            "Set device = 'auto' or one of these; with engine 'ray', reserve GPUs by engine.num_gpus."
        )
    return torch.device(name)


def device_of(module: nn.Module) -> torch.device:
    """Return where a module's weights are; of one without any, the CPU."""
    tensors = [*module.parameters(), *module.buffers()]
    return tensors[0].device if tensors else CPU


def moved(x: Tensor, device: torch.device) -> Tensor:
    """Return x on a device, itself if it is there; a copy to a GPU is pinned, so that nobody waits for it."""
    if x.device == device:
        return x
    if device == CPU:
        return x.cpu()
    pins = device.type == "cuda" and x.device == CPU and torch.cuda.is_available()
    return (x.pin_memory() if pins else x).to(device, non_blocking=True)


def all_moved(tensors: Mapping[str, Tensor], device: torch.device) -> Mapping[str, Tensor]:
    """Return named tensors on a device; the mapping itself if all are there: who compares by identity may."""
    if all(x.device == device for x in tensors.values()):
        return tensors
    return {name: moved(x, device) for name, x in tensors.items()}


def precise(x: Tensor) -> Tensor:
    """Return x in double precision, or in float32 where the device knows no double (mps)."""
    return x.float() if x.device.type == "mps" else x.double()
