"""Real Zenoh sessions on the loopback interface: who is let in, who may speak for whom, and who comes back."""

import queue
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ratemesh.engines import certs
from ratemesh.engines.envelope import EVERYONE, Arrived, Kind, Message, seal
from ratemesh.engines.mailbox import Rules
from ratemesh.engines.peer import Peer, PeerRound
from ratemesh.engines.zenoh_engine import free_addresses, mesh_links
from ratemesh.engines.zenoh_link import LinkSpec, TlsSpec, ZenohTransport
from ratemesh.errors import InputError
from toy_sites import Toy

RUN = bytes(16)
RULES = Rules(deadline=2, patience=30, staleness=1, start=20, beat=0.1, grace=0.5)
SOON = 15.0
"""Seconds in which anything that is to happen happens; what must not is given a second after a sign of life."""


@pytest.fixture
def links(tmp_path: Path) -> list[LinkSpec]:
    return mesh_links(free_addresses(3), tmp_path / "certs")


@pytest.fixture
def opened() -> Iterator[list[ZenohTransport]]:
    """Collect transports, and close them in the end."""
    held: list[ZenohTransport] = []
    yield held
    for transport in held:
        transport.close()


def word(sender: int, value: float) -> bytes:
    return seal(Message(Kind.DATA, RUN, sender, EVERYONE, 1, 1, payload={"x": torch.tensor(value)}))


def heard(transport: ZenohTransport, until: bytes, seconds: float = SOON) -> list[Arrived]:
    """Return all that arrived up to and with a certain message; whatever else there was came before it or with it."""
    found, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        event = transport.receive(0.1)
        if isinstance(event, Arrived):
            found.append(event)
            if event.data == until:
                return found
    return found


def send_until_heard(sender: ZenohTransport, data: bytes, listener: ZenohTransport) -> list[Arrived]:
    """Send until it arrives: links take a moment to be made."""
    found: list[Arrived] = []
    for _ in range(int(SOON / 0.5)):
        sender.send(EVERYONE, data)
        found += heard(listener, data, 0.5)
        if found and found[-1].data == data:
            return found
    raise AssertionError("the message never came")


def test_the_right_certificate_is_heard_and_cannot_take_anothers_name(
    links: list[LinkSpec], opened: list[ZenohTransport]
) -> None:
    """Node 2 speaks on its own keys, then on node 1's, then on its own again: the middle one must not come."""
    listener, speaker = ZenohTransport(links[0], 0, RUN, 1), ZenohTransport(links[2], 2, RUN, 1)
    opened += [listener, speaker]
    send_until_heard(speaker, word(2, 1.0), listener)
    speaker._me = 1  # the same session and certificate, another's keys
    speaker.send(EVERYONE, word(1, 2.0))
    speaker.send(0, word(1, 2.0))
    speaker._me = 2
    later = send_until_heard(speaker, word(2, 3.0), listener)
    assert {event.sender for event in later} == {2}


@pytest.mark.parametrize("kind", ["foreign", "unlisted"])
def test_strangers_are_not_heard(
    kind: str, tmp_path: Path, links: list[LinkSpec], opened: list[ZenohTransport]
) -> None:
    """A certificate of another authority, and one of ours whose name is not in the list of peers."""
    folder = tmp_path / ("certs" if kind == "unlisted" else "foreign")
    name = "visitor" if kind == "unlisted" else "node-2"
    certs.init(folder, [name])
    own = TlsSpec(ca=folder / "ca.pem", certificate=folder / f"{name}.pem", key=folder / f"{name}.key")
    listener, friend = ZenohTransport(links[0], 0, RUN, 1), ZenohTransport(links[1], 1, RUN, 1)
    stranger = ZenohTransport(links[2].model_copy(update={"tls": own}), 2, RUN, 1)
    opened += [listener, friend, stranger]
    events = send_until_heard(friend, word(1, 1.0), listener)
    for i in range(20):
        stranger.send(EVERYONE, word(2, float(i)))
        friend.send(EVERYONE, word(1, float(i)))
        time.sleep(0.05)
    events += heard(listener, word(1, 19.0)) + heard(stranger, word(1, 19.0), 0.2)
    assert {event.sender for event in events} == {1}


def test_a_peer_without_a_certificate_is_not_heard(links: list[LinkSpec], opened: list[ZenohTransport]) -> None:
    listener, friend = ZenohTransport(links[0], 0, RUN, 1), ZenohTransport(links[1], 1, RUN, 1)
    naked = ZenohTransport(links[2].model_copy(update={"tls": None}), 2, RUN, 1)
    opened += [listener, friend, naked]
    events = send_until_heard(friend, word(1, 1.0), listener)
    for i in range(20):
        naked.send(EVERYONE, word(2, float(i)))
        friend.send(EVERYONE, word(1, float(i)))
        time.sleep(0.05)
    assert {event.sender for event in events + heard(listener, word(1, 19.0))} == {1}


def peer(links: list[LinkSpec], me: int, link: LinkSpec | None = None) -> Peer:
    return Peer(me, len(links), RUN, RULES, lambda start: ZenohTransport(link or links[me], me, RUN, start))


def seen(where: Peer, other: int, t: int) -> None:
    """Wait until a peer has said that it is in round t."""
    end = time.monotonic() + SOON
    while where.mailbox.peers[other].round < t and time.monotonic() < end:
        time.sleep(0.02)


def side_by_side(*work: object) -> list[object]:
    """Run functions in threads; return what they return or raise, in order."""
    results: list[object] = [None] * len(work)

    def run(i: int) -> None:
        try:
            results[i] = work[i]()  # type: ignore[operator]
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_a_lost_peer_is_done_without_and_comes_back(links: list[LinkSpec]) -> None:
    """Node 2 goes after round 2; its message is reused once, then its edges rest; in round 5 it is there again."""
    sites = [Toy("tally", 3, i) for i in range(3)]
    peers = [peer(links, i) for i in range(3)]
    assert side_by_side(*(lambda p=p: p.join(1, SOON) for p in peers)) == [1, 1, 1]

    def play(t: int, *who: int) -> list[PeerRound]:
        found = side_by_side(*(lambda i=i: peers[i].play(sites[i], t) for i in who))
        assert all(isinstance(f, PeerRound) for f in found), found
        return found  # type: ignore[return-value]

    try:
        assert [r.told()["outside_theorem"] for r in play(1, 0, 1, 2)] == [0, 0, 0]
        assert [r.log["heard"] for r in play(2, 0, 1, 2)] == [2, 2, 2]
        peers[2].close()
        stale, rests = play(3, 0, 1), play(4, 0, 1)
        assert [(r.told()["stale"], r.log["heard"]) for r in stale] == [(1, 2), (1, 2)]
        assert [(r.told()["resting"], r.log["heard"]) for r in rests] == [(1, 1), (1, 1)]
        assert all(r.told()["outside_theorem"] for r in stale + rests)
        peers[2] = peer(links, 2)
        assert peers[2].join(3, SOON) == 5  # it would go on with round 3, the mesh is in round 5
        late = [lambda i=i: (seen(peers[i], 2, 5), peers[i].play(sites[i], 5))[1] for i in (0, 1)]
        back = side_by_side(*late, lambda: peers[2].play(sites[2], 5))
        assert [r.log["heard"] for r in back] == [2, 2, 2]
        assert [r.told()["outside_theorem"] for r in back] == [0, 0, 0]
        wire = back[0].traffic
        assert wire.wire.total() > wire.bytes.total() > 0
    finally:
        for p in peers:
            p.close()


class BadLine:
    """A real transport behind a line that loses one message in five and takes 200 ms for the others."""

    def __init__(self, inner: ZenohTransport, seed: int) -> None:
        self._inner, self._draw = inner, random.Random(seed)
        self.lost = 0
        self.receive = inner.receive
        self._line: queue.SimpleQueue[tuple[float, int, bytes] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def send(self, receiver: int, data: bytes) -> None:
        if self._draw.random() < 0.2:
            self.lost += 1
        else:
            self._line.put((time.monotonic() + 0.2, receiver, data))

    def _carry(self) -> None:
        while (letter := self._line.get()) is not None:
            due, receiver, data = letter
            time.sleep(max(0.0, due - time.monotonic()))
            self._inner.send(receiver, data)

    def close(self) -> None:
        self._line.put(None)
        self._thread.join()
        self._inner.close()


@pytest.mark.faults
def test_lost_and_late_messages_are_asked_for_again(links: list[LinkSpec]) -> None:
    """With a fifth of all messages lost, of the method and of the protocol, every round is complete and fresh."""
    lines: list[BadLine] = []

    def connect(me: int, start: int) -> BadLine:
        lines.append(BadLine(ZenohTransport(links[me], me, RUN, start), me))
        return lines[-1]

    rules = replace(RULES, deadline=10, grace=1.0)
    peers = [Peer(i, 3, RUN, rules, lambda start, i=i: connect(i, start)) for i in range(3)]
    try:
        side_by_side(*(lambda p=p: p.join(1, 2.0) for p in peers))
        found = side_by_side(*(lambda p=p: [p.play(Toy("tally", 3, p.me), t) for t in range(1, 6)] for p in peers))
        assert [[r.told()["outside_theorem"] for r in rounds] for rounds in found] == [[0] * 5] * 3
        assert sum(line.lost for line in lines) > 20
    finally:
        for p in peers:
            p.close()


def test_the_second_of_a_name_is_told_and_stops(links: list[LinkSpec], tmp_path: Path) -> None:
    peers = [peer(links, i) for i in range(3)]
    double = None
    try:
        side_by_side(*(lambda p=p: p.join(1, SOON) for p in peers))
        double = peer(links, 2, links[2].model_copy(update={"listen": tuple(free_addresses(1))}))
        with pytest.raises(InputError, match="another process runs under this name"):
            double.join(1, 1.0)
    finally:
        for p in [*peers, *filter(None, [double])]:
            p.close()


def test_an_address_in_use_is_named(
    links: list[LinkSpec], opened: list[ZenohTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratemesh.engines.zenoh_link.REBIND_SECONDS", 0.0)
    opened.append(ZenohTransport(links[0], 0, RUN, 1))
    with pytest.raises(InputError, match=r"listen \['127.0.0.1:\d+'\]"):
        ZenohTransport(links[0], 0, RUN, 2)


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    files = certs.init(tmp_path, ["a", "b"])
    assert all(path.is_file() for path in files)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.key")} == {0o600}
    before = (tmp_path / "a.pem").read_bytes()
    certs.init(tmp_path, ["a", "c"])
    assert (tmp_path / "a.pem").read_bytes() == before
    for names in (["a/b"], ["ca"], ["a", "a"]):
        with pytest.raises(InputError, match="sites must be"):
            certs.init(tmp_path, names)
