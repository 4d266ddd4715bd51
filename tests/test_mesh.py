"""Sites as users start them: `ratemesh node` and `ratemesh router`, real processes over mutual TLS."""

import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from typer.testing import CliRunner

import ratemesh
from ratemesh.cli.main import app
from ratemesh.engines import certs
from ratemesh.engines.zenoh_engine import free_addresses
from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config
from ratemesh.experiment.experiment import run
from ratemesh.experiment.launch import judge_sites, run_sites, start, stop, write_sites
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.records import RunFolder
from ratemesh.experiment.site_files import load_router
from ratemesh.report.page import write_report
from ratemesh.studies.compare import budget
from test_experiment import TINY

pytestmark = [pytest.mark.filterwarnings("ignore::ratemesh.errors.RatemeshWarning"), pytest.mark.timeout(300)]


def change(file: Path, change: dict[str, Any], own: dict[str, Any]) -> None:
    """Set top-level settings of a site's file, and settings of its [site]."""
    table = tomllib.loads(file.read_text())
    file.write_text(tomli_w.dumps({**table, **change, "site": {**table["site"], **own}}))


def router_file(site: Path, address: str, **own: Any) -> Path:
    """Write the file of a router for the mesh of a site."""
    table = tomllib.loads(site.read_text())
    del table["site"]
    certs.init(site.parent / "certs", ["middle"])
    files = {"ca": "certs/ca.pem", "certificate": "certs/middle.pem", "key": "certs/middle.key"}
    router = {"name": "middle", "listen": [address], **own}
    written = site.with_name("middle.toml")
    written.write_text(tomli_w.dumps({**table, "relays": ["middle"], "router": router, "tls": files}))
    return written


@contextmanager
def routing(file: Path) -> Iterator[None]:
    process = start(["router", "--config", str(file)], file.with_suffix(".log"))
    try:
        yield
        assert process.poll() is None, file.with_suffix(".log").read_text()
    finally:
        stop([process])
    assert process.returncode == 0, file.with_suffix(".log").read_text()


def test_sites_that_only_call_out_meet_at_a_router_and_learn_the_same(tmp_path: Path) -> None:
    """Algorithm 3, sequential inside clusters, through one router: to the bit what one process computes."""
    table = {**TINY, "graph": {"name": "complete", "nodes": 3}, "method": {"name": "alg3", "coupling": {"start": 2}}}
    config = make_config({**table, "partition": {"name": "labels", "labels": [[0, 1], [1, 2], [0, 2]]}})
    plan, folder = Plan(config), RunFolder.create(tmp_path / "mesh", config)
    files, (address,) = write_sites(plan, folder.path), free_addresses(1)
    for file in files:
        change(file, {"relays": ["middle"]}, {"listen": [], "connect": [address]})
    with routing(router_file(files[0], address)):
        run_sites(files)
    together = judge_sites(plan, folder, [file.with_suffix("") for file in files])
    alone = run(config, tmp_path / "alone").metrics
    assert {key: together[key] for key in alone} == alone
    assert not any(record["outside_theorem"] for record in folder.records())


def test_a_router_that_sites_would_not_believe_is_refused(tmp_path: Path) -> None:
    (file, *_), (address,) = write_sites(Plan(make_config(TINY)), tmp_path), free_addresses(1)
    for name in ("node-0", "stranger"):
        with pytest.raises(InputError, match=rf"router\.name must be in relays.* got '{name}'"):
            load_router(router_file(file, address, name=name))
    with pytest.raises(InputError, match=r"router\.listen"):
        load_router(router_file(file, address, listen=[]))


def test_sites_bring_their_own_data_and_encoder(tmp_path: Path) -> None:
    """One site has its own samples in a file, and another network; the other one takes its part of the run's."""
    config = make_config({**TINY, "graph": {"name": "complete", "nodes": 2}})
    plan = Plan(config)
    data = plan.data
    arrays = {"x_train": data.X_train[::2], "y_train": data.y_train[::2], "x_test": data.X_test, "y_test": data.y_test}
    np.savez(tmp_path / "mine.npz", **{name: array.numpy() for name, array in arrays.items()})
    files = write_sites(plan, tmp_path)
    mine = {"name": "npz", "path": str(tmp_path / "mine.npz"), "validation": 0.25}
    change(files[1], {}, {"data": mine, "encoder": {"name": "mlp", "hidden": [24, 24]}})
    run_sites(files)
    held_out = int((torch.bincount(data.y_train[::2]) // 4).sum())
    for file, samples, judged in (
        (files[0], len(plan.parts[0]), {"accuracy"}),
        (files[1], len(data.y_train[::2]) - held_out, {"accuracy", "val_accuracy"}),
    ):
        summary = json.loads((file.with_suffix("") / "summary.json").read_text())
        assert summary["sample_passes"] == budget(config) * samples
        assert summary["outside_theorem"] == 0
        assert {key for key in summary if "accuracy" in key} == judged
        assert all(summary[key] > 0.5 for key in judged)
        mesh = ratemesh.load(file.with_suffix(""))  # what a site has trained, it can use
        assert [node.samples for node in mesh.saved.card.nodes] == [mesh.saved.stats[0].m.sum()]
        said = write_report([file.with_suffix("")], tmp_path / "page.html")
        assert any("one site of a mesh, finished" in note for note in said.notes)
        assert "incomplete" not in said.page.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "zenho"], r"--engine must be one that starts processes; got 'zenho'\. Did you mean 'zenoh'"),
        (["--engine", "inprocess"], "--engine must be one that starts processes; got 'inprocess'"),
        (["--engine", "ray", "--insecure"], "--insecure must go with --engine zenoh"),
    ],
)
def test_what_cannot_be_launched_is_told_before_anything_starts(words: list[str], message: str, tmp_path: Path) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text(make_config(TINY).to_toml())
    told = CliRunner().invoke(app, ["launch", str(file), "--out", str(out), *words])
    assert isinstance(told.exception, InputError)
    assert re.search(message, str(told.exception))
    assert not out.exists()
