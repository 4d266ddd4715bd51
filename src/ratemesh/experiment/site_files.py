"""`site.toml`: what one site of a mesh must know, its own settings and what all sites agree on."""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import Field

from ratemesh.data import DATASETS, DatasetSpec
from ratemesh.devices import Devices
from ratemesh.encoders import ENCODERS, EncoderSpec
from ratemesh.engines.envelope import RUN_BYTES
from ratemesh.engines.mailbox import Rules
from ratemesh.engines.zenoh_link import LinkSpec, TlsSpec
from ratemesh.errors import InputError
from ratemesh.experiment.config import Config, make_config, read_toml
from ratemesh.specs import NamedSpec, Spec, build, named_in, nearest, resolve


class OwnSpec(Spec):
    """The table [site]: this machine's part."""

    name: str = Field(description="this site's name: the common name of its certificate, and its key in [peers]")
    out: Path = Field(description="run folder; a site that is started again goes on from what is in it")
    listen: tuple[str, ...] = Field((), description="addresses host:port to listen on; none: only call others")
    connect: tuple[str, ...] = Field((), description="addresses host:port to call: peers, or a router")
    data: dict[str, Any] | None = Field(None, description="this site's own data set, instead of a part of the run's")
    encoder: dict[str, Any] | None = Field(None, description="this site's own encoder, instead of the run's")
    share: float | None = Field(None, gt=0, le=1, description="with own data: its part of all samples; default 1/N")
    threads: int = Field(1, ge=1, description="torch threads")
    device: Devices | None = Field(None, description="where this site computes, instead of the run's device")
    deadline: float = Field(10.0, gt=0, description="seconds of silence after which a peer is lost")
    patience: float = Field(600.0, gt=0, description="most seconds to wait for a peer that is alive")
    start: float = Field(60.0, gt=0, description="seconds to wait for a peer that was never heard of")
    staleness: int = Field(3, ge=0, description="rounds that a lost peer's last message is used; then its edge rests")


class MeshSpec(Spec):
    """What everybody in a mesh agrees on, and the certificate files of whoever has this file."""

    run: str = Field(min_length=1, description="name of the run, the same at every site")
    config: dict[str, Any] = Field(description="the run's settings, the same at every site; or the path of their file")
    peers: dict[str, int] = Field(description="every site's name and its number in the graph, this one's too")
    relays: tuple[str, ...] = Field((), description="names of routers, trusted to pass on under other names")
    tls: TlsSpec | None = Field(None, description="certificate files; see `ratemesh certs init`")
    insecure: bool = Field(False, description="plain TCP: anyone who reaches the port can read and forge messages")

    def shared(self) -> Config:
        """Return the run's settings."""
        return make_config(self.config)

    def fingerprint(self) -> bytes:
        """Return what tells this run's messages from another's: its name, settings and members."""
        agreed = [self.run, self.shared().digest(), sorted(self.peers.items())]
        return hashlib.sha256(json.dumps(agreed).encode()).digest()[:RUN_BYTES]

    def endpoints(self, own: "OwnSpec | OwnRelaySpec") -> LinkSpec:
        """Return how to reach the others; `deadline` seconds without a sign of life end a connection."""
        return LinkSpec(
            names=tuple(sorted(self.peers, key=lambda name: self.peers[name])),
            listen=own.listen,
            connect=own.connect,
            relays=self.relays,
            tls=None if self.insecure else self.tls,
            lease_ms=max(1000, int(1000 * own.deadline)),
        )

    def check(self, nodes: int) -> None:
        """Refuse a table of peers that does not fit the graph, and a mesh without identities that nobody asked for."""
        if sorted(self.peers.values()) != list(range(nodes)):
            raise InputError(
                f"peers must give every node of the graph a name, 0 to {nodes - 1}; got {self.peers}. "
                "Set graph.nodes to the number of sites."
            )
        if self.tls is None and not self.insecure:
            raise InputError(
                "tls must name certificates; there is no such table. Make them with `ratemesh certs init`, or set "
                "insecure = true (--insecure) for plain TCP in a network that you trust."
            )


class SiteSpec(MeshSpec):
    """One site's whole file."""

    site: OwnSpec

    @property
    def index(self) -> int:
        """This site's number."""
        return self.peers[self.site.name]

    def rules(self) -> Rules:
        """Return how long to wait and how old messages may be."""
        own = self.site
        beat = min(0.5, own.deadline / 6)
        return Rules(own.deadline, own.patience, own.staleness, own.start, beat, grace=2 * beat)

    def link(self) -> LinkSpec:
        """Return how to reach the others."""
        return self.endpoints(self.site)

    def check(self, nodes: int) -> None:
        """Refuse also a name that nobody knows, and a site that nobody can reach and that calls nobody."""
        super().check(nodes)
        if self.site.name not in self.peers:
            raise InputError(
                f"site.name must be in peers; got '{self.site.name}'. {nearest(self.site.name, self.peers)}"
            )
        if not self.site.listen and not self.site.connect:
            raise InputError("site must have listen or connect; got neither. Give addresses as host:port.")


class OwnRelaySpec(Spec):
    """The table [router]: where it is reached."""

    name: str = Field(description="this router's name: the common name of its certificate, one of `relays`")
    listen: tuple[str, ...] = Field(min_length=1, description="addresses host:port that sites call")
    connect: tuple[str, ...] = Field((), description="addresses host:port of other routers to call")
    deadline: float = Field(10.0, gt=0, description="seconds of silence after which a connection ends")


class RouterSpec(MeshSpec):
    """A router's whole file: it has no data and trains nothing, and passes on what sites without open ports send."""

    router: OwnRelaySpec

    def link(self) -> LinkSpec:
        """Return where it listens."""
        return self.endpoints(self.router)

    def check(self, nodes: int) -> None:
        """Refuse also a router that the sites would not listen to."""
        super().check(nodes)
        if self.router.name not in self.relays or self.router.name in self.peers:
            raise InputError(
                f"router.name must be in relays, at every site too, and not in peers; got '{self.router.name}' with "
                f"relays {list(self.relays)}."
            )


def load_site(path: Path, *, insecure: bool = False) -> SiteSpec:
    """Read and check a site's file; paths in it are relative to its folder, and modules of own classes are there."""
    table = _read(path, insecure)
    with named_in(path.absolute().parent):
        if isinstance(site := table.get("site"), dict):
            kinds: dict[str, tuple[Any, type[NamedSpec]]] = {
                "data": (DATASETS, DatasetSpec),
                "encoder": (ENCODERS, EncoderSpec),
            }
            for key in kinds.keys() & site.keys():
                site[key] = _plain(resolve(site[key], *kinds[key], f"site.{key}"))
        return build(SiteSpec, table, "")


def load_router(path: Path, *, insecure: bool = False) -> RouterSpec:
    """Read and check a router's file; paths in it are relative to its folder."""
    with named_in(path.absolute().parent):
        router = build(RouterSpec, _read(path, insecure), "")
    shared = router.shared()
    router.check(shared.graph.build(shared.seed).nodes)
    return router


def _read(path: Path, insecure: bool) -> dict[str, Any]:
    """Read a file, and the run's settings with what they name made absolute: from their own file's folder, or this."""
    table = read_toml(path, "--config")
    here, run = path.absolute().parent, table.get("config")
    if isinstance(run, str):
        here = (here / run).parent
        run = read_toml(path.absolute().parent / run, "config")
    if isinstance(run, dict):
        table["config"] = _plain(make_config(run, folder=here))
    return {**table, "insecure": True} if insecure else table


def _plain(spec: Spec) -> dict[str, Any]:
    """Return settings as a file has them."""
    return spec.model_dump(mode="json", exclude_none=True)
