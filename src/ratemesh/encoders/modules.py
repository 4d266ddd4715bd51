"""Networks of one's own, given as objects: `torch.nn.Module`s that become encoders like the built-in ones.

A module has no settings that a file could hold. Where its class can be imported and its constructor's arguments can be
read off it, they are its recipe: a saved mesh makes the network again from that and from its weights, without pickle.
"""

import hashlib
import inspect
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from ratemesh.encoders.encoder import EncoderSpec, as_float
from ratemesh.errors import InputError
from ratemesh.specs import import_beside

PLACEMENT = frozenset({"device", "dtype"})
"""What a constructor takes that says nothing of what is built."""


class OwnModule(EncoderSpec):
    """A network that was given as an object; every node trains a copy of it, beginning with its weights."""

    type: str = Field(description="where the class of the network is, module:Class")
    structure: str = Field(description="fingerprint of its layers and shapes; weights do not count")
    _module: nn.Module | None = PrivateAttr(None)

    @classmethod
    def of(cls, module: nn.Module) -> "OwnModule":
        """Return the settings that stand for a module."""
        layers = [str(module), *(f"{name} {tuple(value.shape)}" for name, value in module.state_dict().items())]
        structure = hashlib.sha256("\n".join(layers).encode()).hexdigest()[:16]
        found = cls(type=_place(type(module)), structure=structure)
        found._module = module
        return found

    @property
    def title(self) -> str:
        """The name of the network's class."""
        return self.type.rpartition(":")[2]

    def network(self, shape: tuple[int, ...], d: int) -> nn.Module:  # noqa: ARG002 - it is what it is
        """Return a copy of the module with the weights that it was given with."""
        if self._module is None:
            raise InputError(
                f"encoders must be settings that a file can hold; '{self.type}' was given as an object, in Python. Go "
                "on where the object is: mesh.fit(out=…, resume=True), or ratemesh.load(…, networks=[…])."
            )
        return deepcopy(self._module)


def _place(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def recipe_of(module: nn.Module, X: Tensor) -> dict[str, Any] | None:
    """Return what JSON needs to make such a module again, tried out; None where that does not give the same network.

    Args:
        module: the network.
        X: (m, ...) a few samples, to try both networks on.
    """
    try:
        recipe = _describe(module)
        again = rebuilt(recipe)
        again.load_state_dict(module.state_dict())
        with torch.no_grad():
            same = torch.equal(deepcopy(module).cpu().eval()(as_float(X)), again.eval()(as_float(X)))
    except Exception:  # whatever a foreign class does: it then has no recipe, which is told when it matters
        return None
    return recipe if same else None


def _describe(module: nn.Module) -> dict[str, Any]:
    """Return class and arguments of a module, by the rule that a constructor keeps what it is given under its name."""
    if isinstance(module, nn.Sequential):
        return {
            "type": _place(type(module)),
            "parts": {name: _describe(part) for name, part in module.named_children()},
        }
    arguments = {}
    for name, parameter in inspect.signature(type(module)).parameters.items():
        if name in PLACEMENT or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if hasattr(module, name):
            arguments[name] = _argument(getattr(module, name))
        elif parameter.default is parameter.empty:
            raise ValueError(f"{type(module).__name__} does not keep its argument '{name}'")
    return {"type": _place(type(module)), "arguments": arguments}


def _argument(value: Any) -> Any:
    """Return an argument as JSON holds it; of a weight, such as a bias, it only matters that it is there."""
    if isinstance(value, nn.Module):
        return _describe(value)
    if isinstance(value, Tensor):
        return True
    if isinstance(value, list | tuple):
        return [_argument(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"JSON cannot hold {value!r}")


def rebuilt(recipe: Mapping[str, Any]) -> nn.Module:
    """Make the module of a recipe, with weights as its constructor leaves them.

    Raises:
        InputError: if the class cannot be imported, or is no network: nothing else is ever called.
    """
    module, _, name = str(recipe["type"]).partition(":")
    try:
        cls: Any = import_beside(module, "networks")
        for part in name.split("."):
            cls = getattr(cls, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"networks must be given where their classes cannot be imported; '{recipe['type']}' cannot ({error}). Say "
            "where its module is: --code FOLDER, or ratemesh.load(…, folder=…); or give a network a node: networks=[…]."
        ) from None
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise InputError(f"networks must be torch.nn.Module; '{recipe['type']}' in the card is none.")
    if "parts" in recipe:
        sequence: nn.Module = cls()
        for key, layer in recipe["parts"].items():
            sequence.add_module(key, rebuilt(layer))
        return sequence
    return cls(**{key: _value(value) for key, value in recipe["arguments"].items()})


def _value(value: Any) -> Any:
    if isinstance(value, Mapping) and "type" in value:
        return rebuilt(value)
    return tuple(_value(entry) for entry in value) if isinstance(value, list) else value


@torch.no_grad()
def width_of(network: nn.Module, X: Tensor, what: str) -> int:
    """Return how many numbers a network makes of a sample, tried on a few, (m, ...); refuse one that makes none.

    Args:
        what: whose network it is, for messages.
    """
    training = network.training
    try:
        Z = network.eval()(as_float(X))
    except Exception as error:  # a foreign network may raise anything
        got = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(
            f"{what} must take samples of shape {tuple(X.shape[1:])}, {X.dtype}; its network fails on {len(X)} ({got})."
        ) from error
    finally:
        network.train(training)
    if not isinstance(Z, Tensor) or Z.ndim != 2 or len(Z) != len(X) or not Z.is_floating_point():
        got = f"shape {tuple(Z.shape)}, {Z.dtype}" if isinstance(Z, Tensor) else type(Z).__name__
        raise InputError(f"{what} must give a tensor (m, d) of floats for m samples; got {got} for {len(X)}.")
    return Z.shape[1]


def check_width(found: int, d: int, what: str) -> None:
    """Refuse a network that makes another number of features than d of a sample."""
    if found != d:
        remedy = f"Set d = {found}, or give its last layer {d} outputs."
        raise InputError(f"{what}: expected d = {d}, your network gives {found}. {remedy}")
