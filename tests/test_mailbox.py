"""The round protocol as a state machine, with a clock that the tests turn."""

import math
import queue
from dataclasses import replace

import pytest
import torch

from ratemesh.engines.envelope import (
    EVERYONE,
    HEADER,
    TAG_BYTES,
    Arrived,
    BadMessageError,
    Kind,
    Message,
    Presence,
    open_envelope,
    seal,
)
from ratemesh.engines.mailbox import Mailbox, Rules
from ratemesh.engines.peer import Peer

RUN = bytes(16)
RULES = Rules(deadline=10, patience=100, staleness=2, start=30, beat=0.5, grace=1, tries=2, most=8)
SLOT = ("stats", 0)


class Bench:
    """A mailbox of node 0 among four, and its clock."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.now = 0.0
        self.box = Mailbox(0, 4, RUN, rules, lambda: self.now)
        self.box.begin(1)

    def hear(self, sender: int, t: int, kind: Kind = Kind.HERE, **more: object) -> list[tuple[Kind, int]]:
        given = {"run": RUN, "receiver": EVERYONE if kind == Kind.HERE else 0, "incarnation": 100 + sender, **more}
        return self.box.arrive(Message(kind=kind, sender=sender, round=t, **given))  # type: ignore[arg-type]

    def data(self, sender: int, t: int, value: float = 0.0, slot: tuple[str, int] = SLOT) -> None:
        self.hear(sender, t, Kind.DATA, tag=slot[0], sequence=slot[1], payload={"x": torch.tensor(value)})

    def round(self, t: int, *peers: int) -> set[int]:
        """Enter round t, wait for peers, and return who is awaited."""
        self.box.begin(t)
        self.box.wait_from_now(peers)
        return self.awaited(*peers)

    def awaited(self, *peers: int) -> set[int]:
        return self.box.awaited(dict.fromkeys(peers, SLOT))

    def value(self, peer: int) -> tuple[int, float] | None:
        best = self.box.best(peer, SLOT)
        return best and (best[0], float(best[1]["x"]))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_round_ends_when_all_have_spoken(bench: Bench) -> None:
    assert bench.round(1, 1, 2) == {1, 2}
    bench.data(1, 1, 5.0)
    assert bench.awaited(1, 2) == {2}
    bench.data(2, 1)
    assert bench.awaited(1, 2) == set()
    assert bench.value(1) == (1, 5.0)


def test_early_and_doubled_messages_wait_their_turn(bench: Bench) -> None:
    bench.data(1, 2, 9.0)
    bench.data(1, 2, 8.0)
    assert bench.round(2, 1) == set()
    assert bench.value(1) == (2, 9.0)


def test_a_silent_peer_is_given_up_and_a_beating_one_is_not(bench: Bench) -> None:
    for peer in (1, 2):
        bench.hear(peer, 1)
    bench.round(1, 1, 2)
    for bench.now in range(1, 31):
        bench.hear(2, 1)
        assert bench.awaited(1, 2) == ({1, 2} if bench.now <= 10 else {2})


def test_patience_ends_also_with_a_lively_peer(bench: Bench) -> None:
    bench.hear(1, 1)
    bench.hear(2, 1)
    bench.round(1, 1)
    for bench.now in range(0, 120, 5):
        bench.hear(1, 1)
        bench.hear(2, 1)
        assert bench.awaited(1) == ({1} if bench.now <= 100 else set())


def test_one_lost_peer_does_not_make_others_look_lost() -> None:
    """Node 1 waits for a dead node 3 and beats meanwhile; node 0 must wait longer than node 1's deadline."""
    bench = Bench()
    bench.hear(1, 1)
    bench.round(1, 1)
    for step in range(21):
        bench.now = step / 2
        bench.hear(1, 1)
    bench.now = 10.4
    assert bench.awaited(1) == {1}
    bench.data(1, 1)
    assert bench.awaited(1) == set()


def test_a_lost_peer_is_reused_then_rests_then_comes_back(bench: Bench) -> None:
    bench.hear(2, 1)
    bench.data(1, 1, 5.0)
    assert bench.round(1, 1) == set()
    bench.box.disconnected(1, 101)
    for t, value in ((2, (1, 5.0)), (3, (1, 5.0)), (4, None)):
        bench.hear(2, t)
        assert bench.round(t, 1, 2) - {2} == set()
        assert bench.value(1) == value
    bench.hear(1, 3)  # back, but behind
    assert bench.awaited(1) == set()
    bench.hear(1, 5)  # says where it goes on
    assert bench.round(5, 1, 2) == {1, 2}


def test_who_never_came_is_waited_for_once(bench: Bench) -> None:
    bench.hear(2, 1)
    assert bench.round(1, 3) == {3}
    bench.now = 31
    assert bench.awaited(3) == set()
    assert bench.round(2, 3) == set()


def test_a_joining_peer_is_not_waited_for_before_its_first_round(bench: Bench) -> None:
    bench.hear(1, 3)
    for t in (1, 2):
        bench.now = t
        assert bench.round(t, 1) == {1}
        for _ in range(RULES.tries):  # it answers at once, and has nothing to send
            assert bench.box.ask_again({1}) == [1]
            bench.hear(1, 3, receiver=0)
            bench.now += 0.01
        assert bench.awaited(1) == set()
    assert bench.round(3, 1) == {1}


def test_a_peer_that_is_past_gets_a_moment_to_send_again(bench: Bench) -> None:
    bench.hear(1, 2)
    bench.round(1, 1)
    for again in range(RULES.tries):
        bench.now = 1.1 * again
        assert bench.box.ask_again({1}) == [1]
        assert bench.box.ask_again({1}) == []
    bench.now = 2.0
    assert bench.awaited(1) == {1}
    bench.now = 2.2
    assert bench.awaited(1) == set()


def test_whoever_is_new_gets_what_it_may_have_missed(bench: Bench) -> None:
    assert bench.hear(1, 1) == [(Kind.AGAIN, 1)]
    assert bench.hear(1, 1) == []
    assert bench.hear(1, 4, Kind.AGAIN) == [(Kind.AGAIN, 4)]
    assert bench.hear(1, 1, incarnation=555) == [(Kind.AGAIN, 1)]


def test_a_name_in_use_is_taken(bench: Bench) -> None:
    bench.box.connected(1, 101)
    bench.hear(1, 1)
    assert bench.hear(1, 1, incarnation=555) == [(Kind.TAKEN, 1)]
    assert bench.box.peers[1].incarnation == 101
    bench.box.disconnected(1, 101)
    assert bench.hear(1, 1, incarnation=555) == [(Kind.AGAIN, 1)]


def test_whoever_fell_behind_goes_on_where_the_mesh_is(bench: Bench) -> None:
    assert bench.box.mesh_round() == -1
    for peer, t in ((1, 9), (2, 9), (3, 8)):
        bench.hear(peer, t)
    assert bench.box.mesh_round() == 9
    bench.now = 11
    assert bench.box.mesh_round() == -1


def test_one_peer_alone_cannot_send_a_site_into_the_future(bench: Bench) -> None:
    for peer, t in ((1, 5), (2, 2**31), (3, 5)):
        bench.hear(peer, t)
    assert bench.box.mesh_round() == 5


def test_whoever_is_ahead_of_all_others_waits_for_them(bench: Bench) -> None:
    for peer in (1, 2):
        bench.hear(peer, 12)
        bench.box.disconnected(peer, 100 + peer)
    bench.round(15, 1, 2)
    assert bench.awaited(1, 2) == {1, 2}
    bench.hear(1, 15)
    assert bench.awaited(1, 2) == {1}  # now node 2 is the one behind, and not waited for


def test_parts_go_on_and_heal(bench: Bench) -> None:
    """Nodes 0 and 1 lose 2 and 3, which run ahead; on their return 0 finds the mesh where they are."""
    for peer in (1, 2, 3):
        bench.hear(peer, 4)
    bench.round(4, 1, 2, 3)
    bench.now = 11
    bench.hear(1, 4)
    assert bench.awaited(2, 3) == set()
    bench.hear(1, 5)
    assert bench.round(5, 1, 2, 3) == {1}
    for peer in (2, 3):
        bench.hear(peer, 8)
    assert bench.box.mesh_round() == 8
    assert bench.round(8, 2, 3) == {2, 3}


@pytest.mark.parametrize(
    ("change", "reason"), [({"run": b"x" * 16}, "run"), ({"sender": 9}, "sender"), ({"receiver": 3}, "receiver")]
)
def test_what_is_not_for_this_site_is_refused(bench: Bench, change: dict[str, object], reason: str) -> None:
    given = {"kind": Kind.DATA, "run": RUN, "sender": 1, "receiver": 0, "incarnation": 1, "round": 1, **change}
    with pytest.raises(BadMessageError) as caught:
        bench.box.arrive(Message(**given))  # type: ignore[arg-type]
    assert caught.value.reason == reason


def test_a_peer_cannot_fill_the_memory(bench: Bench) -> None:
    for sequence in range(8):
        bench.data(1, 1, slot=("stats", sequence))
    with pytest.raises(BadMessageError, match="too many"):
        bench.data(1, 1, slot=("stats", 8))
    bench.data(1, 2**31)  # far ahead: not kept, but the round is noted
    assert bench.box.peers[1].round == 2**31


class Line:
    """A transport that brings what the test puts in, and takes anything."""

    def __init__(self, *events: Arrived | Presence) -> None:
        self.events: queue.SimpleQueue[Arrived | Presence] = queue.SimpleQueue()
        for event in events:
            self.events.put(event)

    def send(self, receiver: int, data: bytes) -> None:
        pass

    def receive(self, timeout: float) -> Arrived | Presence | None:
        try:
            return self.events.get(timeout=timeout)
        except queue.Empty:
            return None

    def close(self) -> None:
        pass


HERE = Message(Kind.HERE, RUN, 1, 0, 7, 1)


def joined(*events: Arrived | Presence) -> int:
    """Return the round that a site finds which is told all this, and at last that node 1 is in round 1."""
    peer = Peer(0, 2, RUN, replace(RULES, beat=0.05), lambda _: Line(*events, Arrived(1, seal(HERE))))
    try:
        return peer.join(1, 5.0)
    finally:
        peer.close()


@pytest.mark.parametrize("named", [math.nan, math.inf, 0.5, [1, 2]])
def test_a_name_taken_by_nonsense_is_not_heeded(named: object) -> None:
    """A peer can send well-formed nonsense: it must not end the thread that serves all peers."""
    taken = HERE._replace(kind=Kind.TAKEN, payload={"incarnation": torch.tensor(named)})
    assert joined(Arrived(1, seal(taken))) == 1


def test_any_incarnation_can_be_answered() -> None:
    """Node 1 is connected as 7 and speaks as the largest number that a header can hold: it is told that 7 is alive."""
    again = HERE._replace(receiver=EVERYONE)  # no answer yet: the site goes on listening
    start = HEADER.size - 8 - TAG_BYTES - 8 - 8
    strange = seal(again)[:start] + b"\xff" * 8 + seal(again)[start + 8 :]
    assert open_envelope(strange)._replace(incarnation=7)[:-1] == again[:-1]
    assert joined(Presence(1, 7, here=True), Arrived(1, seal(again)), Arrived(1, strange)) == 1
