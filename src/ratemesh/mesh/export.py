"""A node as one file for other programs: ONNX, torch.export or safetensors, checked against the original."""

import importlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from ratemesh._version import __version__
from ratemesh.data import Incoming
from ratemesh.errors import InputError, RatemeshError
from ratemesh.experiment.storage import write_bytes
from ratemesh.mesh.folding import Raw, Whole, whole
from ratemesh.mesh.mesh import Mesh
from ratemesh.specs import nearest

Format = Literal["onnx", "torch", "safetensors"]
SUFFIX: dict[str, str] = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}
TOLERANCE = 1e-4
"""What features of unit length may differ by; scores, by this part of the largest."""
SIZES = (1, 7)
"""Batches that are compared."""
OUTPUTS = ("features", "scores", "label")

Answers = tuple[Tensor, ...]
"""Features (m, d) and, of a classifier, scores (m, K) and places of classes (m,)."""


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Attributes:
        path: of the file.
        difference: largest of any feature from the original's, on random samples.
        metadata: what the file says of itself.
    """

    path: Path
    difference: float
    metadata: Mapping[str, Any]


def export(
    mesh: Mesh,
    node: int | str = 0,
    form: Format = "onnx",
    out: str | Path | None = None,
    *,
    classifier: bool = False,
    opset: int | None = None,
) -> Exported:
    """Write one node of a mesh as one file; it is put in place only if it says what the original says.

    Args:
        node: number or name.
        form: "onnx", "torch" (a .pt2 file of torch.export) or "safetensors" (weights alone).
        out: the file; one that exists is replaced. Left out: node-N with the form's suffix, in the current folder.
        classifier: whether the file also gives scores and classes, by the node's own statistics.
        opset: version of ONNX's operators; the exporter's unless given.
    """
    if form not in get_args(Format):
        raise InputError(f"format must be a known one; got '{form}'. {nearest(form, get_args(Format))}")
    if opset is not None and form != "onnx":
        raise InputError(f"opset must come with format 'onnx'; got it with '{form}'. Leave it out.")
    place = mesh.place(node)
    path = Path(out) if out is not None else Path(f"node-{place}{SUFFIX[form]}")
    saved = mesh.saved
    stats = saved.stats[place] if classifier else None
    module, raw = whole(saved.encoders[place], saved.intake, stats, saved.card)
    metadata = describe(mesh, place, module, raw)
    content, ask = WAYS[form](module, raw, json.dumps(metadata, ensure_ascii=False), opset)
    difference = max(_compared(mesh, place, raw, m, ask) for m in SIZES)
    write_bytes(path, content)
    return Exported(path, difference, metadata)


def describe(mesh: Mesh, place: int, module: Whole, raw: Raw) -> dict[str, Any]:
    """Return what a file says of itself: what goes in, what comes out, and whose it is."""
    card = mesh.saved.card
    node = card.nodes[place]
    intake = {key: value for key, value in card.intake.items() if key not in ("mean", "scale", "fill")}
    table = raw.table
    what = (
        "raw rows of a table, their columns in this order" if table else f"samples as intake '{intake['name']}' gives"
    )
    pixels = ", pixels 0..255" if raw.dtype == torch.uint8 else ""
    return {
        "ratemesh": __version__,
        "node": node.name,
        "encoder": node.encoder,
        "recipe": node.recipe,
        "input": {
            "name": "x",
            "shape": ["batch", *raw.shape],
            "dtype": str(raw.dtype).removeprefix("torch."),
            "is": what + pixels,
            "columns": list(table.columns) if table else None,
        },
        "outputs": list(OUTPUTS if module.classifier is not None else OUTPUTS[:1]),
        "d": card.d,
        "gauge": "folded into the last linear layer" if module.gauge is None else "a matrix at the end",
        "classes": list(card.classes),
        "judges_by": card.alone if module.classifier is not None else None,
        "intake": intake,
    }


@torch.no_grad()
def _compared(mesh: Mesh, place: int, raw: Raw, m: int, ask: Callable[[Tensor], Answers]) -> float:
    """Return the largest difference of features of m random samples; refuse a file that says anything else."""
    X = raw.draw(m, seed=m)
    Z = mesh.features(X if raw.table else Incoming(X), place)
    found, *judged = ask(X)
    difference = float((found - Z[0]).abs().max())
    worst = max(difference, _apart(judged[0], mesh.judge(place)(Z))) if judged else difference
    if not worst <= TOLERANCE:
        raise RatemeshError(
            f"the export must say what the original says, within {TOLERANCE:g} on random samples; it differs by "
            f"{worst:.3g}. Nothing was written. Try another format, or tell us of the network."
        )
    return difference


def _apart(scores: Tensor, expected: Tensor) -> float:
    """Return the largest difference of scores (m, K), by the largest score; infinite where other classes are held."""
    held = expected.isfinite()
    if not torch.equal(held, scores.isfinite()):
        return torch.inf
    return float((scores - expected)[held].abs().max() / expected[held].abs().max().clamp(min=1))


def _answers(given: Any) -> Answers:
    """Return what a module gave as a tuple."""
    return tuple(given) if isinstance(given, tuple | list) else (given,)


@contextmanager
def _following(module: Whole, what: str) -> Iterator[None]:
    """Say in plain words that an exporter could not follow a network; its own remarks are for its developers."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ImportError:
        raise
    except Exception as error:  # exporters raise nearly anything
        words = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        raise RatemeshError(
            f"{what} cannot follow the network {type(module.network).__name__} ({words}). Write its forward without "
            "decisions that depend on values or on the batch's size, or take --format safetensors."
        ) from error
    finally:
        log.setLevel(level)


def _program(module: Whole, raw: Raw) -> Any:
    """Return what torch.export makes of the module, for any number of samples."""
    batch = torch.export.Dim("batch", min=1)
    return torch.export.export(module, (raw.draw(3),), dynamic_shapes=({0: batch},))


def _as_torch(module: Whole, raw: Raw, metadata: str, _: int | None) -> tuple[bytes, Callable[[Tensor], Answers]]:
    """Return a .pt2 file, and what it says once it is read again."""
    with _following(module, "torch.export"), torch.no_grad():
        out = io.BytesIO()
        torch.export.save(_program(module, raw), out, extra_files={"ratemesh.json": metadata})
        again = torch.export.load(io.BytesIO(out.getvalue())).module()
    return out.getvalue(), lambda X: _answers(again(X))


def _as_safetensors(
    module: Whole,
    _raw: Raw,
    metadata: str,
    _: int | None,
) -> tuple[bytes, Callable[[Tensor], Answers]]:
    """Return a file of weights, and what a module says that is filled from it."""
    content = save_tensors(
        {name: value.contiguous() for name, value in module.state_dict().items()}, {"ratemesh": metadata}
    )
    again = deepcopy(module)
    again.load_state_dict({name: torch.full_like(value, 0) for name, value in module.state_dict().items()})
    again.load_state_dict(load_tensors(content))
    return content, lambda X: _answers(again(X))


def _needed(name: str) -> Any:
    """Return an optional package, or say how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f"format 'onnx' needs {name}, which is not installed. Install it: pip install 'ratemesh[onnx]'"
        ) from None


def _as_onnx(module: Whole, raw: Raw, metadata: str, opset: int | None) -> tuple[bytes, Callable[[Tensor], Answers]]:
    """Return an ONNX file, and what onnxruntime says with it."""
    *_, runtime = (_needed(name) for name in ("onnx", "onnxscript", "onnxruntime"))
    outputs = OUTPUTS if module.classifier is not None else OUTPUTS[:1]
    with _following(module, "ONNX's exporter"), torch.no_grad():
        names: dict[str, Any] = {"input_names": ["x"], "output_names": list(outputs)}
        program = torch.onnx.export(_program(module, raw), opset_version=opset, dynamo=True, verbose=False, **names)
        if program is None:
            raise RuntimeError("the exporter returned nothing")
        program.model.metadata_props["ratemesh"] = metadata
        content: bytes = program.model_proto.SerializeToString()
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    if opset is not None and program.model.opset_imports.get("") != opset:
        got = program.model.opset_imports.get("")
        raise InputError(f"opset must be one that the exporter knows; got {opset}, it made {got}. Leave it out.")

    def ask(X: Tensor) -> Answers:
        return tuple(torch.from_numpy(found) for found in session.run(None, {"x": X.numpy()}))

    return content, ask


WAYS: dict[str, Callable[[Whole, Raw, str, int | None], tuple[bytes, Callable[[Tensor], Answers]]]] = {
    "onnx": _as_onnx,
    "torch": _as_torch,
    "safetensors": _as_safetensors,
}
