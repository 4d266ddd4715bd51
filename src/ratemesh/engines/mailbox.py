"""Rounds that survive: whom a site waits for, how long, and what it uses instead. No transport, no threads.

Every message says in which round its sender is, and promises that nothing more will come of earlier rounds. From
that and from a clock that only this process reads, a mailbox decides by itself; nobody coordinates.

- A peer is waited for as long as it shows signs of life, `deadline` seconds of silence or `patience` seconds in all.
  Peers that wait themselves keep beating, so one lost peer never makes its neighbours look lost.
- Then it is lost: not waited for until it is back in this site's round or later. Its last good message is used for
  `staleness` rounds; after that the edge rests.
- A peer that joins says its first round; nobody waits for it before.
- A site that finds the mesh more than one round ahead goes on there. A site that is ahead of all others waits.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ratemesh.engines.envelope import EVERYONE, BadMessageError, Kind, Message
from ratemesh.messages.formats import Payload

NEVER = float("-inf")

Slot = tuple[str, int]
"""Tag and sequence: which message of a round."""


@dataclass(frozen=True)
class Rules:
    """How long to wait, in seconds, and how old a message may be, in rounds.

    Attributes:
        deadline: silence after which a peer is lost.
        patience: the most to wait for a peer in one exchange, however lively it is.
        staleness: rounds that a message may be reused.
        start: how long to wait for a peer that was never heard of.
        beat: between signs of life.
        grace: how long a peer has to answer a request to send again.
        tries: such requests to a peer that is past the round; the answer may get lost as well.
        ahead: rounds that a message may be early.
        most: messages kept of one peer.
    """

    deadline: float = 10.0
    patience: float = 600.0
    staleness: int = 3
    start: float = 60.0
    beat: float = 0.5
    grace: float = 1.0
    tries: int = 8
    ahead: int = 2
    most: int = 256


@dataclass
class PeerState:
    """What is known of a peer.

    Attributes:
        round: where it is, as far as it said; −1 before it said anything.
        seen: when it last gave a sign of life.
        lost: whether it is not waited for.
        alive: incarnations that the transport says are connected.
        asks: how often it was asked in this exchange for what it sent in a round that it is past.
        asked, answered: when it was last asked to send again, and when it said that it had.
    """

    round: int = -1
    seen: float = 0.0
    lost: bool = False
    incarnation: int | None = None
    alive: set[int] = field(default_factory=set)
    asks: int = 0
    asked: float = NEVER
    answered: float = NEVER


class Mailbox:
    """What arrived at one site, and what it may still hope for."""

    def __init__(
        self, me: int, nodes: int, run: bytes, rules: Rules, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.me, self.run, self.rules, self.clock = me, run, rules, clock
        self.t = 0
        self.peers = {j: PeerState() for j in range(nodes) if j != me}
        self.partners: set[int] = set()
        self.refused: Counter[tuple[int, str]] = Counter()
        self._began = clock()
        self._mail: dict[int, dict[tuple[int, Slot], Payload]] = {j: {} for j in self.peers}
        self._wait_since = self._began

    def begin(self, t: int) -> None:
        """Enter round t; what is too old to be reused is dropped."""
        self.t = t
        for mail in self._mail.values():
            for key in [key for key in mail if key[0] < t - self.rules.staleness]:
                del mail[key]

    def arrive(self, message: Message) -> list[tuple[Kind, int]]:
        """Take in a message; return what to answer its sender: kinds with the round they are about.

        Raises:
            BadMessageError: if it must not be used; the caller counts it in `refused`.
        """
        self._check(message)
        peer, now = self.peers[message.sender], self.clock()
        answers: list[tuple[Kind, int]] = []
        if message.incarnation != peer.incarnation:
            if peer.incarnation in peer.alive:
                return [(Kind.TAKEN, message.round)]
            peer.incarnation, peer.round, peer.asked = message.incarnation, -1, NEVER
            answers = [(Kind.AGAIN, message.round)]  # it may have missed what was sent before it came
        peer.seen = now
        if message.kind in (Kind.DATA, Kind.HERE):
            peer.round = max(peer.round, message.round)
            peer.lost = peer.lost and peer.round < self.t
        if message.kind == Kind.HERE and message.receiver == self.me:
            peer.answered = now
        if message.kind == Kind.AGAIN:
            answers = [(Kind.AGAIN, message.round)]
        if message.kind == Kind.DATA:
            self._keep(message)
        return answers

    def _check(self, message: Message) -> None:
        if message.run != self.run:
            raise BadMessageError("run", "it belongs to another run; all sites must have the same settings")
        if message.sender not in self.peers:
            raise BadMessageError("sender", f"node {message.sender} is no peer")
        if message.receiver not in (self.me, EVERYONE):
            raise BadMessageError("receiver", f"it is for node {message.receiver}")

    def _keep(self, message: Message) -> None:
        """Keep a payload that may be used in this round or soon."""
        mail, key = self._mail[message.sender], (message.round, (message.tag, message.sequence))
        if not self.t - self.rules.staleness <= message.round <= self.t + self.rules.ahead:
            return  # too old to be of use; or so early that this site will go on further ahead
        if key not in mail and len(mail) >= self.rules.most:
            raise BadMessageError("too many", f"{len(mail)} messages are kept already")
        mail.setdefault(key, message.payload)

    def connected(self, peer: int, incarnation: int) -> None:
        """Note that the transport sees a peer."""
        if peer in self.peers:
            self.peers[peer].alive.add(incarnation)

    def disconnected(self, peer: int, incarnation: int) -> None:
        """Note that the transport lost a peer: it is not waited for until it is back."""
        if peer in self.peers:
            state = self.peers[peer]
            state.alive.discard(incarnation)
            state.lost = state.lost or state.incarnation == incarnation

    def wait_from_now(self, peers: Iterable[int]) -> None:
        """Begin to wait for peers; those that are waited for are partners."""
        self._wait_since = self.clock()
        self.partners |= set(peers)
        for peer in self.peers.values():
            peer.asks = 0

    def missing(self, slots: Mapping[int, Slot]) -> list[int]:
        """Return the peers whose message of this round is not there."""
        return [j for j, slot in slots.items() if (self.t, slot) not in self._mail[j]]

    def awaited(self, slots: Mapping[int, Slot]) -> set[int]:
        """Return the peers whose message of this round is not there and may still come."""
        return {j for j in self.missing(slots) if self._hope(j)}

    def _hope(self, j: int) -> bool:
        """Whether to go on waiting for peer j; one that is given up is lost."""
        peer, now, rules = self.peers[j], self.clock(), self.rules
        waited = now - self._wait_since
        if peer.incarnation is None:
            peer.lost = peer.lost or now - self._began > rules.start
        elif peer.lost:
            return self._alone() and now - peer.seen <= rules.deadline
        elif peer.round > self.t:  # past this round: what is not here was lost on the way, or never sent
            return peer.asks < rules.tries or self._answer_due(peer)
        else:
            peer.lost = now - max(peer.seen, self._wait_since) > rules.deadline or waited > rules.patience
        return not peer.lost

    def _answer_due(self, peer: PeerState) -> bool:
        """Whether a peer was asked to send again, and may still answer."""
        return peer.answered < peer.asked and self.clock() - peer.asked < self.rules.grace

    def _alone(self) -> bool:
        """Whether no partner is in this round or further: then those that are behind are worth waiting for."""
        recent = self.clock() - self.rules.deadline
        return not any(self.peers[j].round >= self.t and self.peers[j].seen > recent for j in self.partners)

    def ask_again(self, missing: Iterable[int]) -> list[int]:
        """Return the peers to ask now for what did not come: those past this round at once, others now and then."""
        now, rules = self.clock(), self.rules
        due = []
        for j in missing:
            peer = self.peers[j]
            if peer.round > self.t:
                wanted = peer.asks < rules.tries and not (peer.asks and self._answer_due(peer))
            else:
                often = max(rules.grace, rules.deadline / 3)
                wanted = peer.incarnation is not None and now - max(peer.asked, self._wait_since) >= often
            if wanted:
                peer.asked = now
                peer.asks += peer.round > self.t
                due.append(j)
        return due

    def best(self, j: int, slot: Slot) -> tuple[int, Payload] | None:
        """Return the newest usable message of a slot and its round, this one or an earlier one."""
        rounds = [t for t, s in self._mail[j] if s == slot and t <= self.t]
        return (max(rounds), self._mail[j][max(rounds), slot]) if rounds else None

    def drop(self, j: int, t: int, slot: Slot) -> None:
        """Forget a message that turned out to be unusable."""
        self._mail[j].pop((t, slot), None)

    def mesh_round(self) -> int:
        """Return the round that the mesh is in, as far as this site can tell; −1 if nobody is there.

        With three partners or more the second furthest, so that one peer alone cannot send a site into the future.
        """
        recent = self.clock() - self.rules.deadline
        asked = self.partners or set(self.peers)
        rounds = sorted((self.peers[j].round for j in asked if self.peers[j].seen > recent), reverse=True)
        rounds = [t for t in rounds if t >= 0]
        if not rounds:
            return -1
        return rounds[1] if len(rounds) >= 3 else rounds[0]

    def all_past(self, t: int) -> bool:
        """Whether every peer that is still there has left round t behind."""
        return all(p.lost or p.round > t for p in self.peers.values() if p.incarnation is not None)
