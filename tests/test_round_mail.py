"""Messages of one round without processes: who may go on, what is counted, who is stuck; frames through a real pipe."""

from multiprocessing import Pipe

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.engines import certs
from ratemesh.engines.rounds import Parcel, RoundMail, Traffic, advance, nbytes, play_round
from ratemesh.engines.workers import Frame, failure, raised
from ratemesh.errors import InputError, NonFiniteError, RatemeshError
from ratemesh.training.protocol import Exchange

PAYLOAD = {"x": torch.zeros(3, dtype=torch.float64), "y": torch.zeros((), dtype=torch.int8)}


class Scripted:
    """Nodes that play generators in this process, in any order of events."""

    def __init__(self, programs, order):
        self.programs, self.order, self.events = programs, order, []

    def begin(self, node, t):
        self.events.append((node, advance(self.programs[node])))

    def resume(self, node, tag, messages):
        self.events.append((node, advance(self.programs[node], messages)))

    def next_event(self):
        return self.events.pop(self.order() % len(self.events)) if self.events else None


def gossiping(i, nodes):
    others = frozenset(range(nodes)) - {i}
    heard = []
    for step in range(2):
        inbox = yield Exchange("x", {j: {"v": torch.tensor(10 * i + step)} for j in others}, others)
        heard.append([(j, int(payload["v"])) for j, payload in inbox.items()])
    return {"heard": heard}


@given(st.integers(1, 4), st.integers(0, 2**16))
def test_the_order_of_events_changes_nothing(nodes, seed):
    """Inboxes are in sender order, and the second message never overtakes the first."""
    draw = torch.Generator().manual_seed(seed)
    played = play_round(
        Scripted([gossiping(i, nodes) for i in range(nodes)], lambda: int(torch.randint(99, (), generator=draw))),
        nodes,
        1,
    )
    for i, log in enumerate(played.logs):
        assert log["heard"] == [[(j, 10 * j + step) for j in range(nodes) if j != i] for step in range(2)]
    assert played.traffic.messages.total() == 2 * nodes * (nodes - 1)
    assert played.traffic.bytes.total() == 8 * played.traffic.messages.total()
    assert played.traffic.wire.total() == 0


def test_nodes_that_wait_for_each_other_are_named():
    def waiting(for_whom, tag):
        yield Exchange(tag, {}, frozenset({for_whom}))
        return {}

    message = r"no node can go on: node 0 waits for \[1\]; node 1 waits for \[0\]\. .*sends and receives do not match"
    with pytest.raises(RatemeshError, match=message):
        play_round(Scripted([waiting(1, "a"), waiting(0, "a")], lambda: 0), 2, 1)


@pytest.mark.parametrize("outside", [-1, 2, 0])
def test_nobody_writes_to_itself_or_to_strangers(outside):
    mail = RoundMail(2)
    for exchange in (Exchange("a", {outside: PAYLOAD}, frozenset()), Exchange("a", {}, frozenset({outside}))):
        with pytest.raises(
            RatemeshError, match=rf"node 0 addressed \[{outside}\]; peers must be other nodes in 0\.\.1"
        ):
            mail.post(0, exchange)
    assert mail.traffic.messages.total() == 0  # what was refused is not counted


def test_a_message_of_another_tag_does_not_serve():
    mail = RoundMail(2)
    mail.post(0, Exchange("a", {1: PAYLOAD}, frozenset()))
    mail.post(1, Exchange("b", {}, frozenset({0})))
    assert mail.ready() == [(0, "a", {})]
    assert mail.ready() == []
    assert mail.stuck() == "node 1 waits for [0]"
    mail.post(0, Exchange("b", {1: PAYLOAD}, frozenset()))
    assert [node for node, *_ in mail.ready()] == [0, 1]


def test_parcels_count_as_what_lies_elsewhere():
    traffic = Traffic()
    assert nbytes(PAYLOAD) == 25
    assert nbytes({}) == 0
    for receiver, message in ((1, PAYLOAD), (2, PAYLOAD), (1, Parcel(100, "there"))):
        traffic.record(("a", 0, receiver), message)
    assert dict(traffic.bytes) == {("a", 0, 1): 125, ("a", 0, 2): 25}
    assert dict(traffic.messages) == {("a", 0, 1): 2, ("a", 0, 2): 1}


def through_a_pipe(frame: Frame) -> Frame:
    here, there = Pipe()
    with here, there:
        frame.send(here)
        return Frame.receive(there)


def test_a_payload_to_many_nodes_crosses_a_pipe_once():
    other = {"z": torch.arange(6).view(2, 3).mT}
    found = through_a_pipe(Frame(["words", 3], {0: PAYLOAD, 4: other, 2: PAYLOAD}))
    assert (found.words, found.failed, list(found.payloads)) == (["words", 3], False, [0, 4, 2])
    assert found.payloads[0] is found.payloads[2]
    assert torch.equal(found.payloads[4]["z"], other["z"])
    assert found.payloads[0]["x"].dtype == torch.float64
    assert through_a_pipe(Frame()).payloads == {}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InputError("wrong input"), InputError),
        (NonFiniteError("lost"), NonFiniteError),
        (RatemeshError("anything"), RatemeshError),
    ],
)
def test_our_errors_keep_kind_and_words_through_a_pipe(error, kind):
    with pytest.raises(kind, match=f"^{error}$") as found:
        raised(through_a_pipe(failure(error)))
    assert type(found.value) is kind


def test_a_bug_brings_its_traceback_along():
    try:
        {}["absent"]
    except KeyError as error:
        frame = failure(error)
    with pytest.raises(RuntimeError, match=r"(?s)in a worker process:\nTraceback .*KeyError: 'absent'"):
        raised(through_a_pipe(frame))
    assert raised(Frame("fine")).words == "fine"


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        (["a", "../b"], r"sites must be names of letters, digits, '-', '_' and '\.', not 'ca'; got '\.\./b'"),
        (["ca"], "not 'ca'; got 'ca'"),
        ([""], "got ''"),
        (["a", "a"], r"sites must be different; got \['a', 'a'\]\. A name is an identity"),
    ],
)
def test_names_that_are_no_identities_get_no_certificate(tmp_path, sites, message):
    with pytest.raises(InputError, match=message):
        certs.init(tmp_path / "certs", sites)
    assert not (tmp_path / "certs").exists()


def test_half_an_authority_is_not_used(tmp_path):
    (tmp_path / "ca.pem").write_text("")
    with pytest.raises(InputError, match=r"must hold ca\.pem and ca\.key, or neither\. Take an empty folder"):
        certs.init(tmp_path, ["a"])
