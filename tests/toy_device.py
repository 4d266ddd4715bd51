"""A device that is not there: tensors that say they are on another device, with real numbers in them.

No GPU is needed to find out that two devices were mixed, or that a host waits for one. Inside `Pretend()` tensors on
torch's device "meta" hold their numbers on the CPU. Every operation passes through here: one between the two devices
raises, as a GPU would, and what a GPU makes the host wait for is counted, and raises while `strict` is on.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ratemesh.training import local

AWAY = torch.device("meta")
aten = torch.ops.aten

WAITS = {aten._local_scalar_dense, aten.nonzero, aten.bincount, aten.masked_select, aten.equal, aten.repeat_interleave}
WAITS |= {aten._unique2, aten.unique_dim, aten.unique_consecutive, aten._linalg_eigh, aten._linalg_svd}
"""Operations whose result or size a host needs before it can go on."""

COPIES = {aten._to_copy, aten.copy_}
"""Operations that may have two devices."""


class MixedError(RuntimeError):
    """An operation between two devices."""


class WaitedError(RuntimeError):
    """A host would have waited for the device in the middle of a step."""


class Away(Tensor):
    """A tensor that says it is on the other device; `held` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Away":
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        made = Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=AWAY, **layout)
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    def tolist(self) -> Any:
        return self.cpu().tolist()  # torch has none for classes of one's own

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Pretend().run(func, args, kwargs or {})  # seen by the mode before, unless this is outside of it


def _away(x: Tensor, known: dict[int, "Away"]) -> "Away":
    return known[id(x)] if id(x) in known else Away(x)


def held(x: Any) -> Any:
    return x.held if isinstance(x, Away) else x


class Pretend(TorchDispatchMode):
    """The mode in which the other device exists; `waits` counts what a host would have waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.strict = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        away = [x for x in tensors if isinstance(x, Away)]
        # As with a GPU, a number from the CPU may take part.
        here = [x for x in tensors if not isinstance(x, Away) and x.ndim]
        packet, device = func.overloadpacket, kwargs.get("device")
        goes = device is not None and torch.device(device) == AWAY
        if away and here and packet not in COPIES:
            raise MixedError(f"{func} is given tensors on two devices: {[tuple(x.shape) for x in tensors]}")
        self._look(packet, args, kwargs, bool(away), goes)
        kwargs = {**kwargs, "device": torch.device("cpu")} if device is not None else kwargs
        result = func(*tree_map(held, args), **tree_map(held, kwargs))
        if torch.Tag.inplace_view in func.tags and away:  # the wrapper changes its shape, too
            with no_dispatch():
                func(*args, **kwargs)
        if packet is aten.copy_ or torch.Tag.inplace_view in func.tags:
            return args[0]
        known = {id(x.held): x for x in away}  # in place: the same tensor comes back
        if goes or (away and device is None):
            result = tree_map(lambda x: _away(x, known) if isinstance(x, Tensor) else x, result)
        return result

    def _look(self, packet: Any, args: Any, kwargs: dict[str, Any], away: bool, goes: bool) -> None:
        """Count what a host waits for: a size or a number, a copy from the device, a copy to it that blocks."""
        leaves = packet is aten._to_copy and away and kwargs.get("device") is not None and not goes
        fetched = packet is aten.copy_ and isinstance(args[1], Away) and not isinstance(args[0], Away)
        blocks = packet is aten._to_copy and goes and not away and not kwargs.get("non_blocking")
        stored = packet is aten.copy_ and isinstance(args[0], Away) and not isinstance(args[1], Away)
        picked = packet in (aten.index, aten.index_put, aten.index_put_) and any(
            isinstance(x, Tensor) and x.dtype == torch.bool for x in args[1]
        )
        made = packet is aten.lift_fresh and away
        if (away and packet in WAITS) or leaves or fetched or blocks or stored or picked or made:
            self.waits[str(packet)] += 1
            if self.strict:
                raise WaitedError(f"{packet} makes the host wait for the device")


@contextmanager
def pretending(monkeypatch: pytest.MonkeyPatch, *, strict_steps: bool = True) -> Iterator[Pretend]:
    """Make the device, with weights that move there; while a trainer is in its steps, nobody may wait for it."""
    adam = sys.modules["torch.optim.adam"]  # its package hides it behind the class
    monkeypatch.setattr(adam, "_device_dtype_check_for_fused", lambda *_, **__: None)
    mode, batches = Pretend(), local.batches

    def watched(*given: Any) -> Iterator[Tensor]:
        try:
            for rows in batches(*given):
                mode.strict = strict_steps
                yield rows
        finally:
            mode.strict = False

    monkeypatch.setattr(local, "batches", watched)
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a weight changes its class, not only its data
    try:
        with mode:
            yield mode
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)


class Picks(TorchFunctionMode):
    """Indexing by torch's operators: Python's own way asks for a device, which a build without CUDA cannot give."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__ and args[0].device.type == "cuda":
            return picked(args[0], args[1] if isinstance(args[1], tuple) else (args[1],))
        if func is Tensor.__setitem__ and args[0].device.type == "cuda":
            return aten.index_put_(args[0], [args[1]], args[2])
        if func is Tensor.__float__ and args[0].device.type == "cuda":
            return 1.0
        if func is Tensor.copy_ and args[0].device.type == "cuda":
            return args[0]  # no numbers, nothing to copy
        return func(*args, **(kwargs or {}))


def picked(x: Tensor, places: tuple[Any, ...]) -> Tensor:
    """Return x[places]: whole numbers, slices, None, an ellipsis, or tensors along the first axes."""
    used = sum(place is not None and place is not ... for place in places)
    full = [slice(None)] * (x.ndim - used)
    at = next((i for i, place in enumerate(places) if place is ...), len(places))
    axis, tensors = 0, []
    for place in (*places[:at], *full, *places[at + 1 :]):
        if isinstance(place, int):
            x = aten.select(x, axis, place)
            continue
        if place is None:
            x = aten.unsqueeze(x, axis)
        elif isinstance(place, slice) and place != slice(None):
            x = aten.slice(x, axis, place.start, place.stop, place.step or 1)
        tensors.append(place if isinstance(place, Tensor) else None)
        axis += 1
    return aten.index(x, tensors) if any(place is not None for place in tensors) else aten.alias(x)
