"""The file that a site sends: its class statistics as a message, and in the header what they are of."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, SerializeAsAny
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ratemesh.connection.site import SiteStatistics, SketchUse
from ratemesh.core.checks import check_finite
from ratemesh.core.stats import ClassStats
from ratemesh.data.arrays import bounded
from ratemesh.data.sketches import SKETCHES
from ratemesh.errors import InputError, RatemeshError
from ratemesh.experiment.storage import write_bytes
from ratemesh.messages.codecs import CODECS, PACKED, codec_at
from ratemesh.messages.formats import CodecSpec
from ratemesh.messages.lowrank import LowRank
from ratemesh.messages.statistics import StatsMessage, Stream
from ratemesh.specs import Spec, build, nearest

FORMAT = 1
KEY = "ratemesh"
"""Entry of a file's header that says what the tensors are of."""

SMALL = LowRank(name="lowrank", rank=4, inner="int8")
"""Statistics in few bytes: four directions of every class, in eight bits as the means and the sketch moments."""

Word = Annotated[str, Field(min_length=1, max_length=200)]


class About(Spec):
    """Header of a site's file."""

    format: Literal[1]
    name: Word
    classes: Annotated[tuple[Word, ...], Field(min_length=1, max_length=10**5)]
    d: Annotated[int, Field(ge=1, le=2**16)]
    rule: Literal["centred"]
    codec: Annotated[SerializeAsAny[CodecSpec], codec_at("codec")]
    sketch: SketchUse | None = None


def write_site(path: Path, site: SiteStatistics, codec: CodecSpec = PACKED) -> int:
    """Write what a site sends, atomically; return the number of its bytes."""
    content = pack_site(site, codec)
    write_bytes(path, content)
    return len(content)


def pack_site(site: SiteStatistics, codec: CodecSpec = PACKED) -> bytes:
    """Return a site's file; of one that was read from a file, that file: a second loss would follow on the first."""
    if site.sent is not None:
        return site.sent
    if codec.remembers:
        raise InputError("codec must carry whole statistics; got 'delta', which sends differences. Use another.")
    about = About(
        format=FORMAT, name=site.name, classes=site.classes, d=site.d, rule="centred", codec=codec, sketch=site.sketch
    )
    payload = _stream(about).encode(StatsMessage(site.stats))
    tensors = {**payload, "offset": site.offset}
    header = json.dumps(about.model_dump(mode="json", exclude_none=True), ensure_ascii=False, separators=(",", ":"))
    found: bytes = save({key: value.contiguous() for key, value in tensors.items()}, metadata={KEY: header})
    return found


def read_site(path: Path) -> SiteStatistics:
    """Read a site's file as a message of a stranger: nothing is executed, every number is checked before it is used."""
    try:
        bounded((path.stat().st_size,), 1, f"'{path}'")
        content = path.read_bytes()
        payload = load(content)
    except (OSError, SafetensorError) as error:
        raise InputError(f"'{path}' must be a readable safetensors file ({error}).") from None
    # What loads has a header of JSON after eight bytes of its length; the library tells only its tensors.
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    about = _about(header.get("__metadata__", {}).get(KEY), path)
    offset = payload.pop("offset", torch.zeros(0))
    if offset.shape != (about.d,) or offset.dtype != torch.float32:
        raise InputError(f"'{path}' must hold an offset of {about.d} float32 numbers; got {tuple(offset.shape)}.")
    check_finite(offset, f"offset of '{path}'")
    bounded((len(about.classes), about.d, about.d), 4, f"V of '{path}'")
    stats = _statistics(about, payload, path)
    return SiteStatistics(about.name, about.classes, stats, offset, about.sketch, content)


def _about(header: str | None, path: Path) -> About:
    """Read a header; only sketches and codecs of our own are known there, so that no file can name code to import."""
    try:
        table: Any = json.loads(header or "")
        named: dict[str, tuple[Mapping[str, Any], str]] = {"codec": (CODECS, table["codec"]["name"])}
        if table.get("sketch"):
            named["sketch"] = (SKETCHES, table["sketch"]["spec"]["name"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InputError(
            f"'{path}' must be a file of site statistics; its header does not say what they are of. Write it with "
            "`ratemesh stats`."
        ) from None
    for key, (known, name) in named.items():
        if name not in known or name == "delta":
            raise InputError(f"{key} of '{path}' must be a known one; got {name!r}. {nearest(str(name), known)}")
    about = build(About, table, f"header of '{path}'")
    if len(set(about.classes)) < len(about.classes):
        raise InputError(f"classes of '{path}' must have names of their own; got {list(about.classes)}.")
    return about


def _statistics(about: About, payload: dict[str, Tensor], path: Path) -> ClassStats:
    """Decode the message; refuse one that no site could have sent."""
    if ("C" in payload) != (about.sketch is not None) or "mu" not in payload:
        raise InputError(f"'{path}' must hold class means, and sketch moments exactly if its header names a sketch.")
    try:
        stats = _stream(about).read(payload, 0).stats
    except RatemeshError as error:
        reason = str(error).partition("was refused: ")[2]
        raise InputError(f"'{path}' must hold statistics that a site can have: {reason} Ask for it again.") from None
    if bool((stats.m < 1).any()):
        raise InputError(f"'{path}' must hold samples of all its classes; got counts {stats.m.tolist()}.")
    return stats


def _stream(about: About) -> Stream:
    """Return what packs and reads messages of these dimensions."""
    K, d = len(about.classes), about.d
    like = ClassStats.without_means(torch.zeros(1, 1, 1).expand(K, d, d), torch.zeros(K))
    return Stream(about.codec, 0, like, means=True, p=about.sketch.spec.p if about.sketch else 0)
