"""Transport over Zenoh: explicit endpoints, mutual TLS, and nobody speaks under another's name.

Keys are `ratemesh/<run>/<sender>/<receiver>`. Zenoh's access control lets a certificate's common name put on the keys
of its own node only, at every receiver, so the sender in a key is as good as the certificate behind the link.
"""

import json
import queue
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratemesh.engines.envelope import EVERYONE, HEADER, Arrived, Limits, Presence
from ratemesh.errors import InputError
from ratemesh.specs import Spec

HEARD = ["put", "delete", "liveliness_token"]
ASKED = ["declare_subscriber", "declare_liveliness_subscriber", "liveliness_query"]
REBIND_SECONDS = 15.0
"""How long to try to listen on an address that a killed process has just left."""


class TlsSpec(Spec):
    """Certificate files, PEM: the authority that all sites trust, and this site's own."""

    ca: Path
    certificate: Path
    key: Path

    def check(self) -> None:
        """Refuse files that are not there."""
        for name in ("ca", "certificate", "key"):
            if not getattr(self, name).is_file():
                raise InputError(
                    f"tls.{name} must be a PEM file; '{getattr(self, name)}' is none. "
                    "Make certificates with: ratemesh certs init DIR --sites NAME NAME …"
                )


class LinkSpec(Spec):
    """Where a site listens, whom it calls, and who everybody is.

    Attributes:
        names: common name of every node's certificate, by node.
        relays: common names of routers, trusted to pass on what they checked themselves.
        tls: None is plain TCP without any identity.
    """

    names: tuple[str, ...]
    listen: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    tls: TlsSpec | None = None
    lease_ms: int = 10_000

    def zenoh_config(self, me: int | None, run: str) -> dict[str, Any]:
        """Return Zenoh's configuration; `me` None is a router that only passes on."""
        scheme = "tls" if self.tls else "tcp"
        mode = "router" if me is None else "peer" if self.listen else "client"
        config: dict[str, Any] = {
            "mode": mode,
            "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
            "listen": {"endpoints": [f"{scheme}/{address}" for address in self.listen], "exit_on_failure": True},
            "connect": {
                "endpoints": [f"{scheme}/{address}" for address in self.connect],
                "exit_on_failure": False,
                "timeout_ms": -1,
                "retry": {"period_init_ms": 100, "period_max_ms": 1000, "period_increase_factor": 1.5},
            },
            "timestamping": {"enabled": False},
            "transport": {
                "shared_memory": {"enabled": False},
                "link": {
                    "protocols": [scheme],
                    "tx": {"lease": self.lease_ms},
                    "rx": {"max_message_size": Limits().body + HEADER.size + 4096},
                },
            },
        }
        if self.tls:
            config["transport"]["link"]["tls"] = _tls(self.tls)
            config["access_control"] = _access(run, self.names, self.relays)
        return config


def _tls(files: TlsSpec) -> dict[str, Any]:
    """Return the TLS settings: both ends show a certificate of the common authority.

    Host names are not compared: who a peer is follows from the common name, wherever it runs.
    """
    own = {"private_key": str(files.key), "certificate": str(files.certificate)}
    return {
        "root_ca_certificate": str(files.ca),
        "enable_mtls": True,
        "verify_name_on_connect": False,
        "close_link_on_expiration": True,
        **{f"{side}_{name}": value for side in ("listen", "connect") for name, value in own.items()},
    }


def _access(run: str, names: Sequence[str], relays: Sequence[str]) -> dict[str, Any]:
    """Return the access rules: a name is heard on its own keys only, a relay on all, a stranger on none."""
    everything = f"ratemesh/{run}/**"
    rules = [
        {"id": "tell", "flows": ["egress"], "messages": [*HEARD, *ASKED], "key_exprs": [everything]},
        {"id": "ask", "flows": ["ingress"], "messages": ASKED, "key_exprs": [everything]},
        {"id": "relay", "flows": ["ingress"], "messages": HEARD, "key_exprs": [everything]},
    ]
    subjects: list[dict[str, Any]] = []
    policies = []
    for i, name in enumerate(names):
        rules.append({"id": f"own {i}", "flows": ["ingress"], "messages": HEARD, "key_exprs": [_key(run, i, "**")]})
        subjects.append({"id": f"node {i}", "cert_common_names": [name]})
        policies.append({"rules": ["tell", "ask", f"own {i}"], "subjects": [f"node {i}"]})
    if relays:
        subjects.append({"id": "relays", "cert_common_names": list(relays)})
        policies.append({"rules": ["tell", "ask", "relay"], "subjects": ["relays"]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": [{"permission": "allow", **rule} for rule in rules],
        "subjects": subjects,
        "policies": policies,
    }


def _key(run: str, sender: int, rest: str) -> str:
    return f"ratemesh/{run}/{sender}/{rest}"


def load_zenoh() -> Any:
    """Return the zenoh module, or say how to get it."""
    try:
        import zenoh
    except ImportError:
        raise InputError(
            "engine 'zenoh' must have eclipse-zenoh; it is not installed. Get it with: pip install 'ratemesh[zenoh]'"
        ) from None
    return zenoh


def open_session(link: LinkSpec, me: int | None, run: str) -> Any:
    """Open a Zenoh session; an address that stays in use is the user's to free."""
    zenoh = load_zenoh()
    if link.tls:
        link.tls.check()
    config = zenoh.Config.from_json5(json.dumps(link.zenoh_config(me, run)))
    until = time.monotonic() + REBIND_SECONDS
    while True:
        try:
            return zenoh.open(config)
        except zenoh.ZError as error:
            if "in use" not in str(error) or time.monotonic() > until:
                raise InputError(
                    f"listen {list(link.listen)} and tls must work; Zenoh says: {error}. Free the address, or choose "
                    "another; make certificates with `ratemesh certs init`."
                ) from None
            time.sleep(0.5)


class ZenohTransport:
    """One node's Zenoh session. Callbacks only put into a queue: they run on Zenoh's receive thread."""

    def __init__(self, link: LinkSpec, me: int, run: bytes, incarnation: int) -> None:
        self._zenoh = load_zenoh()
        self._me, self._run = me, run.hex()
        self._events: queue.SimpleQueue[Arrived | Presence] = queue.SimpleQueue()
        self._session = open_session(link, me, self._run)
        to_me = [f"ratemesh/{self._run}/*/{me}", f"ratemesh/{self._run}/*/all"]
        self._held = [self._session.declare_subscriber(key, self._arrived) for key in to_me]
        living = f"ratemesh/{self._run}/*/alive/*"
        liveliness = self._session.liveliness()
        self._held.append(liveliness.declare_subscriber(living, self._came_or_went, history=True))
        self._held.append(liveliness.declare_token(_key(self._run, me, f"alive/{incarnation}")))

    def send(self, receiver: int, data: bytes) -> None:
        """Put bytes on the receiver's key; blocks at most until Zenoh gives the link up."""
        key = _key(self._run, self._me, "all" if receiver == EVERYONE else str(receiver))
        others, block = self._zenoh.Locality.REMOTE, self._zenoh.CongestionControl.BLOCK
        self._session.put(key, data, congestion_control=block, allowed_destination=others)

    def receive(self, timeout: float) -> Arrived | Presence | None:
        """Return the next thing that happened, or None after `timeout` seconds."""
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Undeclare everything and close the session."""
        for thing in self._held:
            thing.undeclare()
        self._session.close()

    def _arrived(self, sample: Any) -> None:
        sender = str(sample.key_expr).split("/")[2]
        if sample.kind == self._zenoh.SampleKind.PUT and sender.isdecimal():
            self._events.put(Arrived(int(sender), bytes(sample.payload)))

    def _came_or_went(self, sample: Any) -> None:
        _, _, peer, _, incarnation = str(sample.key_expr).split("/")
        if peer.isdecimal() and incarnation.isdecimal() and int(peer) != self._me:
            here = sample.kind == self._zenoh.SampleKind.PUT
            self._events.put(Presence(int(peer), int(incarnation), here))
