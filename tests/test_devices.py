"""Devices as users name them: words, lists, errors; what leaves a site; bf16 and torch.compile on the CPU."""

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import ratemesh as rm
from ratemesh import devices
from ratemesh.devices import CPU, available, moved, resolve_device
from ratemesh.encoders.networks import Conv4, Mlp
from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config
from ratemesh.experiment.experiment import resume, run
from ratemesh.experiment.plan import ExperimentSite, Plan
from ratemesh.experiment.site_files import SiteSpec
from ratemesh.experiment.standalone import SitePlan
from ratemesh.specs import build
from ratemesh.training.local import encode
from ratemesh.training.protocol import Exchange
from test_experiment import TINY, stop_at, tiny
from toy_device import AWAY, pretending
from toy_engines import HERE, alone
from toy_nodes import nodes, samples

DIGITS: dict[str, Any] = {
    "rounds": 3,
    "d": 32,
    "graph": {"name": "ring", "nodes": 3},
    "encoders": [{"name": "mlp", "hidden": [64]}],
    "engine": {"name": "inprocess", "workers": 1},
}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs to be named; nothing computes on them."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)


@pytest.mark.parametrize("word", ["gpu", "cuda:", "cuda:-1", "CUDA", "", "cpu:0", 1, ["cpu", "gpu"], [], None])
def test_words_that_name_no_device_are_refused(word: object) -> None:
    with pytest.raises(InputError, match=r"^device must .* got .*Write device = 'auto', 'cpu', 'cuda', 'cuda:1'"):
        make_config({"device": word})


@pytest.mark.parametrize("word", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_there_is_refused_before_any_work(word: str, tmp_path: Path) -> None:
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("this machine has one")
    message = rf"device must be one that the machine of node 1 has; got '{word}', it has cpu.* Set device = 'auto'"
    with pytest.raises(InputError, match=message):
        run(tiny(device=["cpu", word]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_auto_takes_gpus_in_turn_then_the_cpu(gpus: None) -> None:
    assert available() == ["cuda:0", "cuda:1", "cpu"]
    assert [str(resolve_device("auto", node)) for node in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [str(resolve_device("cuda", node)) for node in range(2)] == ["cuda:0", "cuda:0"]
    with pytest.raises(InputError, match=r"got 'cuda:2', it has cuda:0, cuda:1, cpu"):
        resolve_device("cuda:2")


def test_without_gpus_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    assert resolve_device("auto") == torch.device("mps")
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    assert resolve_device("auto") == CPU


def test_a_list_is_dealt_out_and_a_device_decides_no_result() -> None:
    config = make_config({"device": ["cuda:1", "cpu"]})
    assert [config.device_of(node) for node in range(3)] == ["cuda:1", "cpu", "cuda:1"]
    assert make_config({"device": "mps"}).device_of(5) == "mps"
    assert config.digest() == make_config({}).digest()
    assert make_config({"precision": "bf16"}).digest() != make_config({}).digest()
    with pytest.raises(InputError, match="precision"):
        make_config({"precision": "fp8"})


def test_a_site_may_compute_elsewhere_than_the_others(tmp_path: Path, gpus: None) -> None:
    site = {"name": "a", "out": str(tmp_path), "listen": ["127.0.0.1:1"]}
    table = {"run": "x", "config": tiny(device="cuda"), "insecure": True, "peers": {"a": 0, "b": 1, "c": 2, "d": 3}}
    shared, own = (build(SiteSpec, {**table, "site": {**site, **more}}, "") for more in ({}, {"device": "cuda:1"}))
    assert [str(SitePlan(spec).device(0)) for spec in (shared, own)] == ["cuda:0", "cuda:1"]
    assert shared.fingerprint() == own.fingerprint()
    with pytest.raises(InputError, match=r"device must be a word that names one; got 'tpu'"):
        build(SiteSpec, {**table, "site": {**site, "device": "tpu"}}, "")


def test_a_copy_to_a_gpu_is_pinned_and_one_that_is_there_is_none(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: asked.append("pinned") or self)
    monkeypatch.setattr(Tensor, "to", lambda self, device, **how: asked.append((str(device), how)) or self)
    x = torch.ones(2)
    assert moved(x, CPU) is x
    assert asked == []
    moved(x, torch.device("cuda:1"))
    assert asked == ["pinned", ("cuda:1", {"non_blocking": True})]


@pytest.mark.filterwarnings("ignore:.*num_batches_tracked. copying from a non-meta:UserWarning")
def test_what_leaves_a_site_is_on_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ratemesh.experiment.plan.resolve_device", lambda word, node: AWAY)
    with pretending(monkeypatch):
        plan = Plan(make_config(TINY))
        site, other = ExperimentSite(plan, 0), ExperimentSite(plan, 1)
        event = next(site.round(1))
        assert isinstance(event, Exchange)
        assert len({id(payload) for payload in event.send.values()}) == 1  # a broadcast stays one
        outside = [*event.send[1].values(), *site.features("test", 5).values(), *site.stats().values()]
        assert {type(tensor) for tensor in outside} == {Tensor}
        assert {tensor.device for tensor in outside} == {CPU}
        assert other.read(event.tag, 0, event.send[1]).stats.V.device == AWAY
        site.save(str(tmp_path))
        weights = site.program.encoder.state_dict()["network.1.weight"].cpu()
        site.load(str(tmp_path))
        assert site.program.stats.V.device == AWAY
        assert site.program.encoder.state_dict()["network.1.weight"].device == AWAY
    saved = load_file(tmp_path / "node-0000.safetensors")
    assert torch.equal(saved["modules.network.1.weight"], weights)


@pytest.mark.filterwarnings("ignore:.*num_batches_tracked. copying from a non-meta:UserWarning")
def test_a_run_begun_elsewhere_is_that_of_the_cpu_and_goes_on_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = run(TINY, tmp_path / "cpu").metrics
    with monkeypatch.context() as patch:
        patch.setattr("ratemesh.experiment.plan.resolve_device", lambda word, node: AWAY)
        with pretending(patch), pytest.raises(KeyboardInterrupt):
            run(TINY, tmp_path / "away", progress=stop_at(2))
    found = resume(tmp_path / "away").metrics
    assert found["acc_energy"] == pytest.approx(wanted["acc_energy"], abs=0.05)
    assert found["reduction"] == pytest.approx(wanted["reduction"], rel=0.02)
    assert found["bytes_total"] == wanted["bytes_total"]


@pytest.mark.parametrize("spec", [Mlp(hidden=(16,)), Conv4(width=0.2)])
def test_bf16_is_inside_the_network_only(spec: Mlp | Conv4) -> None:
    X = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    plain = spec.build((1, 8, 8), 8, 0)
    half = copy.deepcopy(plain).placed(CPU, "bf16")
    inside: list[torch.dtype] = []
    half.network[-1].register_forward_hook(lambda module, given, output: inside.append(output.dtype))
    Z = half(X)
    assert inside == [torch.bfloat16]
    assert Z.dtype == torch.float32
    torch.testing.assert_close(Z.norm(dim=1), torch.ones(6), atol=1e-5, rtol=0)
    assert 0 < (Z - plain(X)).detach().abs().max().item() < 0.05
    Z.sum().backward()
    assert {weight.grad.dtype for weight in half.parameters() if weight.grad is not None} == {torch.float32}
    assert encode(half, X, batch=4).dtype == torch.float32


def test_bf16_trains_as_well_and_resumes_exactly(tmp_path: Path) -> None:
    full, half = (run({**DIGITS, "precision": p}, tmp_path / p).metrics for p in ("float32", "bf16"))
    assert half != full
    assert half["acc_energy"] == pytest.approx(full["acc_energy"], abs=0.03)
    assert half["acc_energy"] > 0.8
    with pytest.raises(KeyboardInterrupt):
        run({**DIGITS, "precision": "bf16"}, tmp_path / "again", progress=stop_at(2))
    assert resume(tmp_path / "again").metrics == half
    states = load_file(sorted((tmp_path / "bf16").glob("checkpoints/*/node-0000.safetensors"))[-1])
    assert {value.dtype for value in states.values() if value.is_floating_point()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_encoders_train_as_well_under_the_same_names(tmp_path: Path) -> None:
    one = {**DIGITS, "graph": {"name": "empty", "nodes": 1}, "rounds": 2}
    plain, compiled = (run({**one, "compile": c}, tmp_path / str(c)).metrics for c in (False, True))
    assert compiled["acc_energy"] == pytest.approx(plain["acc_energy"], abs=0.03)
    saved = [sorted((tmp_path / c).glob("checkpoints/*/node-0000.safetensors"))[-1] for c in ("False", "True")]
    names = [load_file(path).keys() for path in saved]
    assert names[0] == names[1]


def test_an_encoder_that_cannot_be_compiled_names_the_setting(tmp_path: Path) -> None:
    code = "import json, sys, ratemesh; ratemesh.run(json.loads(sys.argv[1]), sys.argv[2])"
    one = {**DIGITS, "graph": {"name": "empty", "nodes": 1}, "compile": True, "rounds": 1}
    environment = {**os.environ, "CXX": "/bin/false", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    words = [sys.executable, "-c", code, json.dumps(one), str(tmp_path / "run")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert "InputError: compile must be false where torch.compile cannot compile an encoder" in done.stderr
    assert "Set compile = false" in done.stderr


def test_a_copy_of_a_compiled_encoder_is_compiled_for_itself() -> None:
    encoder = Mlp(hidden=(4,)).build((3,), 2, 0).placed(CPU, compiles=True)
    encoder._compiled = encoder.network.forward
    other = copy.deepcopy(encoder)
    assert other.compiles
    assert other._compiled is None
    assert torch.equal(other.gauge, encoder.gauge)


def test_a_ray_actor_sees_the_gpu_that_it_reserved_and_no_other() -> None:
    """Ray believes in GPUs that it is told of, so that what it shows to actors can be seen without any."""
    done = alone(HERE / "toy_places.py", timeout=120)
    assert done.returncode == 0, done.stderr
    reserved, none = map(json.loads, done.stdout.strip().splitlines()[-2:])
    assert sorted(reserved) == [[0], [1]]
    assert none == [[], []]


def test_a_node_may_say_where_it_trains() -> None:
    first, second = nodes()
    assert rm.Mesh([first, second]).config().device == "auto"
    assert rm.Mesh([first, replace(second, device="cuda:1")], device="cpu").config().device == ["cpu", "cuda:1"]
    with pytest.raises(InputError, match=r"device must be a word that names one; got 'gpu'"):
        rm.Mesh([first, replace(second, device="gpu")]).config()


def test_predictions_are_made_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mesh = rm.Mesh(nodes()).fit(rounds=1, progress=False)
    X, _ = samples(3, 40)
    labels, scores = mesh.to("auto").predict(X, return_scores=True)
    monkeypatch.setattr("ratemesh.mesh.mesh.resolve_device", lambda word, node: AWAY)
    with pretending(monkeypatch):
        away = mesh.to("cuda")
        assert {encoder.device for encoder in mesh.encoders} == {AWAY}
        found, there = away.predict(X, return_scores=True)
        away.save(tmp_path / "saved")
    assert (found == labels).all()
    assert abs(there - scores).max() < 1e-4
    assert (rm.load(tmp_path / "saved").predict(X) == labels).all()
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"got 'cuda:9', it has"):
        rm.load(tmp_path / "saved").to("cuda:9")


def test_the_module_says_what_there_is() -> None:
    assert available()[-1] == "cpu"
    assert devices.device_of(torch.nn.Identity()) == CPU
