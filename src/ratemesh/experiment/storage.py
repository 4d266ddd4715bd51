"""Files that are either whole or not there."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ratemesh.errors import InputError, RatemeshError


def make_new_folder(path: Path, what: str, remedy: str) -> None:
    """Make a folder; refuse one that holds anything, and one that cannot be made."""
    refuse_occupied(path, what, remedy)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{what} must be a folder that can be made; got '{path}' ({error}). Choose another.") from None


def refuse_occupied(path: Path, what: str, remedy: str) -> None:
    """Raise if something is there already."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{what} must be a new or empty folder; '{path}' exists. {remedy}")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: a crash or a full disk leaves the old one as it was."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RatemeshError(f"cannot write '{path}': {error}. What was there before is untouched.") from error


def write_text(path: Path, content: str) -> None:
    """Write text atomically."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write JSON atomically; NaN and infinity become null, which every reader understands."""
    write_text(path, json.dumps(plain(content), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"'{path}' must be a readable JSON file ({error}).") from None
    if not isinstance(content, dict):
        raise InputError(f"'{path}' must hold a JSON object; got {type(content).__name__}.")
    return content


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors as safetensors, atomically, whatever device they are on."""
    write_bytes(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read named tensors; nothing in the file is executed."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"'{path}' must be a readable safetensors file ({error}).") from None


def plain(value: Any) -> Any:
    """Return the value with NaN and infinity as None, at any depth."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
