"""Files of a run folder: whole or not there, read back as written, and refused or passed over when damaged."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.errors import InputError, RatemeshError
from ratemesh.experiment.config import Config, make_config
from ratemesh.experiment.experiment import next_free
from ratemesh.experiment.memory import Memory
from ratemesh.experiment.plan import spaced
from ratemesh.experiment.records import SCHEMA, RunFolder, environment, round_record
from ratemesh.experiment.storage import (
    plain,
    read_json,
    read_tensors,
    write_bytes,
    write_json,
    write_tensors,
    write_text,
)
from ratemesh.experiment.trials import is_complete, more_trials, numbers, plan_trials, resume_trials


@pytest.fixture
def config() -> Config:
    return make_config({"rounds": 3})


@pytest.fixture
def folder(tmp_path: Path, config: Config) -> RunFolder:
    return RunFolder.create(tmp_path / "run", config)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.sampled_from(["", "NaN", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=8,
)


@given(VALUES)
def test_only_lost_numbers_change_and_they_become_null(value):
    written = json.dumps(plain(value), allow_nan=False)
    assert json.loads(written) == json.loads(json.dumps(value), parse_constant=lambda _: None)


def test_tuples_become_lists_and_keys_stay():
    assert plain({"a": (1.0, math.nan, [math.inf]), "b": True}) == {"a": [1.0, None, [None]], "b": True}


def test_a_file_that_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    (path / "inside").mkdir(parents=True)
    with pytest.raises(RatemeshError, match=r"cannot write '.*numbers\.json': .*What was there before is untouched"):
        write_json(path, {"a": 2})
    assert [p.name for p in tmp_path.rglob("*")] == ["numbers.json", "inside"]  # no half of a file either


def test_nothing_is_left_beside_what_was_written(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"\x00\xff")
    write_text(tmp_path / "b", "ε²")
    write_tensors(tmp_path / "c", {"x": torch.arange(6).view(2, 3).mT, "y": torch.ones(2, requires_grad=True)})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "c"]
    assert (tmp_path / "b").read_bytes() == "ε²".encode()
    found = read_tensors(tmp_path / "c")
    assert torch.equal(found["x"], torch.arange(6).view(2, 3).mT)  # a transposed tensor is written as it is seen
    assert not found["y"].requires_grad


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"must be a readable JSON file \(Expecting"),
        (b"\xff", r"must be a readable JSON file \('utf-8' codec"),
        (b"[" * 5_000, r"must be a readable JSON file \(maximum recursion depth"),
        (b"[1]", r"must hold a JSON object; got list\."),
        (b"null", r"must hold a JSON object; got NoneType\."),
    ],
    ids=["cut", "bytes", "deep", "list", "null"],
)
def test_json_that_is_no_object_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"odd\.json' {message}"):
        read_json(path)
    with pytest.raises(InputError, match=r"absent\.json' must be a readable JSON file"):
        read_json(tmp_path / "absent.json")


def test_tensors_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"\xff" * 20)
    for name in ("x.safetensors", "absent.safetensors"):
        with pytest.raises(InputError, match=rf"{name}' must be a readable safetensors file"):
            read_tensors(tmp_path / name)


def test_a_folder_below_a_file_cannot_be_made(tmp_path: Path, config: Config) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"out must be a new or empty folder; '.*file' exists\. Choose another"):
        RunFolder.create(tmp_path / "file", config)
    with pytest.raises(InputError, match=r"out must be a folder that can be made; got '.*inside'"):
        RunFolder.create(tmp_path / "file" / "inside", config)


def test_the_environment_names_versions_and_no_machine(folder: RunFolder) -> None:
    found = read_json(folder.path / "environment.json")
    assert found["schema"] == SCHEMA
    assert torch.__version__.startswith(found["packages"]["torch"].split("+")[0])
    assert (
        set(found)
        == set(environment())
        == {*("schema", "started", "python", "packages", "system", "cores", "torch_threads")}
    )


@pytest.mark.parametrize("torn", ['{"round": 3, "a"', "3\n", '{"round": null}\n', "[]\n", '{"a": 1}\n', "\x00\x00"])
def test_records_end_where_they_are_torn_and_are_played_again(folder: RunFolder, torn: str) -> None:
    for t in (1, 2):
        folder.append(folder.rounds, {"round": t, "value": math.nan})
    with folder.rounds.open("a") as file:
        file.write(torn)
    assert folder.records()[:2] == [{"round": 1, "value": None}, {"round": 2, "value": None}]
    folder.keep_rounds(2)
    assert [record["round"] for record in folder.records()] == [1, 2]
    folder.keep_rounds(1)
    assert [record["round"] for record in folder.records()] == [1]
    assert folder.timing.read_text() == ""  # none was there


def test_bytes_that_are_no_text_do_not_keep_a_run_from_going_on(folder: RunFolder) -> None:
    folder.append(folder.rounds, {"round": 1})
    with folder.rounds.open("ab") as file:
        file.write(b"\xff\xfe\n")
    folder.keep_rounds(1)
    assert folder.records() == [{"round": 1}]


def test_without_records_there_are_none(folder: RunFolder) -> None:
    assert folder.records() == []
    folder.rounds.mkdir()
    with pytest.raises(RatemeshError, match=r"cannot write '.*rounds\.jsonl': .*the run can be resumed"):
        folder.append(folder.rounds, {"round": 1})


def test_a_checkpoint_is_the_last_one_only(folder: RunFolder, config: Config) -> None:
    assert folder.last_good_round(config) == 0
    for t in (1, 2):
        folder.states(t).mkdir(parents=True)
        folder.commit(t, config, "print")
    assert [p.name for p in folder.checkpoints.iterdir()] == ["round-000002"]
    assert folder.last_good_round(config, "print") == folder.last_good_round(config) == 2
    with pytest.raises(InputError, match=r"was trained on other data .* name = \"digits\" have changed"):
        folder.last_good_round(config, "another")
    with pytest.raises(InputError, match=r"belongs to another configuration than '.*config\.toml'"):
        folder.last_good_round(make_config({"rounds": 4}))
    write_json(folder.checkpoint, {**read_json(folder.checkpoint), "schema": 7})
    with pytest.raises(InputError, match=r"checkpoint\.json' has schema 7; this version reads 1\."):
        folder.last_good_round(config, "print")


@given(st.lists(st.floats(-1e6, 1e6) | st.none() | st.just(math.nan), min_size=1, max_size=6))
def test_a_round_s_mean_is_over_nodes_that_know(values):
    record = round_record(4, [{"x": value} for value in values], {"bytes": 9})
    known = [value for value in values if value is not None and not math.isnan(value)]
    assert (record["round"], record["bytes"], len(record["nodes"])) == (4, 9, len(values))
    assert record["x"] == pytest.approx(math.fsum(known) / len(known), abs=1e-6) if known else math.isnan(record["x"])


@pytest.mark.parametrize("content", ["{}", '{"trials": "many"}', '{"trials": 0}', '{"trials": true}'])
def test_trials_without_a_number_are_refused_in_words(tmp_path: Path, config: Config, content: str) -> None:
    plan_trials(config, tmp_path / "out", 2)
    assert not is_complete(tmp_path / "out")
    (tmp_path / "out" / "trials.json").write_text(content)
    assert not is_complete(tmp_path / "out")
    message = r"trials\.json' must say how many trials there are; got .*Write it in"
    with pytest.raises(InputError, match=message):
        resume_trials(tmp_path / "out")
    with pytest.raises(InputError, match=message):
        more_trials(tmp_path / "out", 3)


def test_only_what_is_a_number_in_every_trial_is_averaged():
    one = {"schema": 1, "a": 1, "b": 0.5, "c": True, "d": None, "e": "x", "f": 2.0, "g": math.inf}
    assert numbers([one, {**one, "f": None}]) == ["a", "b"]
    assert numbers([one]) == ["a", "b", "f"]


@given(st.integers(1, 50), st.integers(1, 60))
def test_evenly_spaced_positions_span_all_and_never_repeat(total, most):
    found = spaced(total, most).tolist()
    assert len(found) == min(total, most)
    assert found == sorted(set(found))
    assert found[0] == 0
    assert found[-1] == total - 1 or most == 1


def test_memory_in_words_has_a_remedy_only_where_it_lacks():
    assert Memory(3, 2 * 10**9, 4 * 10**9).in_words(2) == "2 nodes with 3 networks need 2 GB, 4.0 GB are free"
    short = Memory(3, 4 * 10**9, 10**9)
    assert not short.fits
    assert short.in_words(2).endswith("1.0 GB are free. Take narrower encoders, or a partition with fewer replicas")


def test_the_next_free_folder_passes_over_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "run-001").write_text("")
    (tmp_path / "runs" / "run-003").mkdir()
    assert next_free() == Path("runs/run-002")
