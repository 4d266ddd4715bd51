"""One site among others: plays rounds of its program over a transport, and answers peers meanwhile.

A thread of its own takes in what arrives, shows signs of life and sends again what peers missed, also while the
program trains. The program sees an inbox only, as in every other engine.
"""

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ratemesh.engines.envelope import (
    EVERYONE,
    Arrived,
    BadMessageError,
    Kind,
    Message,
    Presence,
    Transport,
    open_envelope,
    seal,
)
from ratemesh.engines.mailbox import NEVER, Mailbox, Rules, Slot
from ratemesh.engines.protocol import Site
from ratemesh.engines.rounds import Traffic, advance, refuse_strangers
from ratemesh.errors import InputError, RatemeshError
from ratemesh.messages.formats import Payload
from ratemesh.training.protocol import Exchange, Inbox, RoundLog


@dataclass
class PeerRound:
    """A round as one site saw it: the program's log, what went wrong, and what was sent."""

    log: RoundLog = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    traffic: Traffic = field(default_factory=Traffic)

    def told(self) -> dict[str, float]:
        """Return the notes for a record. The theorem speaks of rounds in which every message is there and fresh."""
        counts = {name: float(self.notes[name]) for name in ("late", "stale", "resting", "refused")}
        return {**counts, "outside_theorem": float(bool(self.notes["stale"] or self.notes["resting"]))}


class Peer:
    """A site's end of the mesh.

    Args:
        me: this node's number among `nodes`.
        run: fingerprint of what all peers agree on.
        connect: makes the transport, given this start's incarnation.
        strict: a message that does not come is an error, as in the engines that lose none.
        say: takes a line for the site's log.
    """

    def __init__(
        self,
        me: int,
        nodes: int,
        run: bytes,
        rules: Rules,
        connect: Callable[[int], Transport],
        *,
        strict: bool = False,
        say: Callable[[str], None] = lambda line: None,  # noqa: ARG005
    ) -> None:
        self.me, self.nodes, self.run, self.rules, self.strict, self.say = me, nodes, run, rules, strict, say
        self.incarnation = secrets.randbits(63)
        self.mailbox = Mailbox(me, nodes, run, rules)
        self._round = 0
        self._taken = NEVER
        self._read: dict[tuple[int, Slot], tuple[int, Any]] = {}  # the last message used of a slot, and its round
        self._sent: list[tuple[int, int, bytes]] = []  # receiver, round and message
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._transport = connect(self.incarnation)
        self._pump = threading.Thread(target=self._serve, daemon=True)
        self._failure: BaseException | None = None

    def join(self, first: int, settle: float) -> int:
        """Say that this site goes on with round `first`; return the round that the mesh is in, −1 if nobody is there.

        Waits until all peers have answered, `settle` seconds at most. Whoever finds its name taken stops.
        """
        self._round = first
        self.mailbox.begin(first)
        self._pump.start()
        began = time.monotonic()
        while True:
            waited = time.monotonic() - began
            with self._changed:
                taken = time.monotonic() - self._taken < 4 * self.rules.beat
                answered = all(peer.answered > NEVER for peer in self.mailbox.peers.values())
                if not taken and (answered or waited > settle):
                    return self.mailbox.mesh_round()
                self._changed.wait(self.rules.beat)
                self._raise_failure()
            if taken and waited > self.rules.deadline + settle:
                raise InputError(
                    f"node {self.me} must be started once; another process runs under this name. End it first, or "
                    "give this site another certificate and name."
                )

    def play(self, site: Site, t: int, *, listen: bool = False) -> PeerRound:
        """Play round t of the site's program.

        Args:
            listen: hear the others without being counted: nothing is sent, and nobody waits for this site.
        """
        outcome = PeerRound()
        with self._changed:
            self.mailbox.begin(t)
            refused = self.mailbox.refused.total()
        self._enter(t + 1 if listen else t)
        got: Counter[tuple[str, int]] = Counter()
        program = site.round(t)
        event = advance(program)
        while isinstance(event, Exchange):
            refuse_strangers(self.me, event, self.nodes)
            if not listen:
                self._publish(t, event, outcome.traffic)
            event = advance(program, self._await(event, got, site, outcome.notes))
        outcome.log = event
        self._enter(t + 1)
        outcome.notes["refused"] = self.mailbox.refused.total() - refused
        return outcome

    def mesh_round(self) -> int:
        """Return the round that the mesh is in, −1 if nobody is there."""
        with self._changed:
            return self.mailbox.mesh_round()

    def leave(self, last: int, seconds: float) -> None:
        """Stay until every peer that is there is past the last round, so that nobody misses what was sent in it."""
        self._enter(last + 1)
        until = time.monotonic() + seconds
        with self._changed:
            while not self.mailbox.all_past(last) and time.monotonic() < until:
                self._changed.wait(self.rules.beat)

    def close(self) -> None:
        """End the thread and the connections."""
        self._ended.set()
        if self._pump.is_alive():
            self._pump.join(timeout=10)
        self._transport.close()

    def _enter(self, t: int) -> None:
        """Say that nothing more will come of rounds before t."""
        with self._changed:
            self._round = t
            self._sent = [sent for sent in self._sent if sent[1] >= t - 1]
        self._tell(Kind.HERE, EVERYONE, t)

    def _publish(self, t: int, exchange: Exchange, traffic: Traffic) -> None:
        """Send before waiting, and keep what was sent for those who ask again."""
        for receiver, payload in exchange.send.items():
            edge = (exchange.tag, self.me, receiver)
            number, tag = traffic.messages[edge], exchange.tag
            data = seal(Message(Kind.DATA, self.run, self.me, receiver, self.incarnation, t, number, tag, payload))
            traffic.record(edge, payload)
            traffic.wire[edge] += len(data)
            with self._changed:
                self._sent.append((receiver, t, data))
            self._transport.send(receiver, data)

    def _await(self, exchange: Exchange, got: Counter[tuple[str, int]], site: Site, notes: Counter[str]) -> Inbox:
        """Return what came of what the program waits for, senders ascending; fresh, or stale, or not at all."""
        slots = {j: (exchange.tag, got[exchange.tag, j]) for j in sorted(exchange.recv)}
        got.update((exchange.tag, j) for j in slots)
        missing = self._wait(slots)
        notes["late"] += len(missing)
        if missing and self.strict:
            raise RatemeshError(
                f"node {self.me} waits for {missing}, which sent nothing of '{exchange.tag}' in this round. "
                "The method's sends and receives do not match, or the connection was lost; the run can be resumed."
            )
        inbox: dict[int, Any] = {}
        for j, slot in slots.items():
            found = self._usable(j, slot, site)
            if found is None:
                notes["resting"] += 1
                continue
            age, inbox[j] = found
            notes["stale"] += age > 0
        return inbox

    def _wait(self, slots: Mapping[int, Slot]) -> list[int]:
        """Wait until all is here or given up; return whose message is not here."""
        with self._changed:
            self.mailbox.wait_from_now(slots)
        while True:
            with self._changed:
                self._raise_failure()
                pending = self.mailbox.awaited(slots)
                if not pending:
                    return self.mailbox.missing(slots)
                asked = self.mailbox.ask_again(pending)
                if not asked:
                    self._changed.wait(self.rules.beat / 2)
            for j in asked:
                self._tell(Kind.AGAIN, j, self.mailbox.t)

    def _usable(self, j: int, slot: Slot, site: Site) -> tuple[int, Any] | None:
        """Return the newest message of a slot that the program can use, read once, and its age in rounds."""
        while True:
            with self._changed:
                best = self.mailbox.best(j, slot)
            if best is None:
                return None
            t, payload = best
            try:
                if self._read.get((j, slot), (NEVER, None))[0] != t:
                    self._read[j, slot] = t, site.read(slot[0], j, payload)
                return self.mailbox.t - t, self._read[j, slot][1]
            except RatemeshError as error:
                with self._changed:
                    self.mailbox.drop(j, t, slot)
                    self._refuse(j, BadMessageError("content", str(error)))

    def _serve(self) -> None:
        """Take in what arrives and beat, until the end."""
        beaten = NEVER
        while not self._ended.is_set():
            if time.monotonic() - beaten >= self.rules.beat:
                beaten = time.monotonic()
                self._tell(Kind.HERE, EVERYONE, self._round)
            try:
                event = self._transport.receive(self.rules.beat / 2)
                if event is not None:
                    self._take(event)
            except BaseException as error:  # a bug must reach the main thread, or it would wait for ever
                self._failure = error
                return

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _take(self, event: Arrived | Presence) -> None:
        """Take in one event and answer it."""
        with self._changed:
            self._changed.notify_all()
            if isinstance(event, Presence):
                self._presence(event)
                return
            try:
                message = open_envelope(event.data)
                if message.sender != event.sender:
                    raise BadMessageError("identity", f"node {event.sender} spoke as node {message.sender}")
                answers = self.mailbox.arrive(message)
                if message.kind == Kind.TAKEN:
                    self._heed(message)
            except BadMessageError as error:
                self._refuse(event.sender, error)
                return
        for kind, t in answers:
            self._answer(kind, message, t)

    def _presence(self, event: Presence) -> None:
        if event.here:
            self.mailbox.connected(event.peer, event.incarnation)
        elif not self.strict:  # in a strict mesh only a missing message counts, not a link that came back
            self.mailbox.disconnected(event.peer, event.incarnation)
            self.say(f"node {event.peer} is gone")

    def _heed(self, message: Message) -> None:
        """Note that a peer knows another process under this site's name."""
        named = message.payload.get("incarnation")
        if named is not None and named.numel() == 1 and named.item() == self.incarnation:
            self._taken = time.monotonic()

    def _answer(self, kind: Kind, message: Message, t: int) -> None:
        """Answer a peer: send what it missed from round t on, or tell it that its name is taken."""
        if kind == Kind.TAKEN:
            self._tell(kind, message.sender, t, {"incarnation": torch.tensor(message.incarnation)})
            return
        with self._changed:
            missed = [data for receiver, sent, data in self._sent if receiver == message.sender and sent >= t]
        for data in missed:
            self._transport.send(message.sender, data)
        self._tell(Kind.HERE, message.sender, self._round)

    def _refuse(self, sender: int, error: BadMessageError) -> None:
        self.mailbox.refused[sender, error.reason] += 1
        self.say(f"a message of node {sender} was refused: {error}")

    def _tell(self, kind: Kind, receiver: int, t: int, payload: Payload | None = None) -> None:
        message = Message(kind, self.run, self.me, receiver, self.incarnation, t, payload=payload or {})
        self._transport.send(receiver, seal(message))
