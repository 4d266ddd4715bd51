"""The ruler of the package's size: counted on a toy package, and a message's hops on the real one."""

from pathlib import Path

import pytest
import torch
from benchmarks import hops
from benchmarks.house import House, Source, body, length

ONE = '''"""Words."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratemesh.low.two import g

X = 1
"""What X is."""


def f(a: int) -> int:
    """Say a,
    in two lines."""
    # why
    return (
        a + X
    )
'''
TWO = """from ratemesh.low.one import f
import ratemesh.top


def g() -> int:
    def inner() -> int:
        from ratemesh.high.three import h
        return h()
    b = f(1)
    return b + inner()
"""
THREE = "from ratemesh.low.two import g\n\n\ndef h() -> int:\n    return g()\n"


@pytest.fixture
def house(tmp_path: Path) -> House:
    files = {"low/one": ONE, "low/two": TWO, "high/three": THREE, "top": "", "low/__init__": "", "__init__": ""}
    for name, text in files.items():
        path = tmp_path / "src" / "ratemesh" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("\n" * 17)
    return House(tmp_path)


def test_comments_docstrings_and_blanks_are_no_code(house: House) -> None:
    one = next(source for source in house.sources if source.module == "ratemesh.low.one")
    assert one.code[:4] == [
        "from typing import TYPE_CHECKING",
        "if TYPE_CHECKING:",
        "from ratemesh.low.two import g",
        "X = 1",
    ]
    assert one.code[4:] == ["def f(a: int) -> int:", "return (", "a + X", ")"]
    (f,) = one.functions
    assert (length(f), len(body(f))) == (5, 1)  # the comment counts as length, the docstring does not


def test_imports_for_types_make_a_cycle_and_those_inside_functions_do_not(house: House) -> None:
    assert house.cycles() == 1
    two = next(source for source in house.sources if source.module == "ratemesh.low.two")
    assert set(two.imports()) == {"ratemesh.low.one.f", "ratemesh.top"}
    alone = Source(two.path, two.module, TWO.replace("from ratemesh.low.one import f", "f = abs"))
    house.sources[house.sources.index(two)] = alone
    assert house.cycles() == 0


def test_the_whole_is_the_sum_of_its_layers(house: House) -> None:
    numbers = house.numbers()
    assert numbers["files"] == "6"
    assert numbers["one-statement functions"] == "2"
    assert (
        numbers["test lines / source lines"] == f"{17 / sum(len(text.splitlines()) for text in (ONE, TWO, THREE)):.2f}"
    )
    assert house.layer("high") == "1 / 5 / 3"
    assert house.layer("nowhere") == "–"


def test_what_is_derived_from_samples_is_found_inside_other_things() -> None:
    V, weights = torch.zeros(3, hops.D, hops.D), torch.zeros(hops.D, 16)
    assert hops.holds([{"a": (1, V)}], hops.of_samples)
    assert not hops.holds([{"a": (1, weights)}, "V", b"V" * hops.LEAST_BYTES], hops.of_samples)
    assert hops.holds({"data": b"V" * hops.LEAST_BYTES}, hops.of_message)
    assert not hops.holds({"data": b"alive"}, hops.of_message)


def test_a_message_between_sites_goes_from_pack_to_the_neighbour() -> None:
    names = {name for _, name in hops.trace_sites()}
    assert {"Stream.pack", "seal", "open_envelope", "Mailbox.arrive", "Alg1Program.round"} <= names
    assert not names & {"dual_step", "LocalTrainer.train"}
