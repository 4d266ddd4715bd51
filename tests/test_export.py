"""`ratemesh export`: one node as one file that says what the node says, whoever reads it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.nn.functional import normalize

import ratemesh as rm
from ratemesh.data.texts import Texts
from ratemesh.encoders import Encoder
from ratemesh.errors import InputError, RatemeshError
from ratemesh.mesh import export as exporting
from ratemesh.mesh.export import export
from ratemesh.mesh.folding import folded
from toy_cli import call
from toy_nodes import WORDS, Wide, samples
from toy_trained import rows, trained

BUILT_IN = ({"name": "mlp", "hidden": [16]}, {"name": "conv4", "width": 0.1}, {"name": "resnet18", "width": 0.1})

pytestmark = pytest.mark.filterwarnings("ignore::ratemesh.errors.RatemeshWarning")  # of unequal shares


class Ending(nn.Module):
    """An own network that does not end in a linear layer."""

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.d = d
        self.body = nn.Linear(6, d)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.body(X)) + 0.1


class Choosy(Wide):
    """An own network that decides by values, which no exporter can follow."""

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return super().forward(X if X.sum() > 0 else -X)


@pytest.fixture(scope="module")
def pictures() -> rm.Mesh:
    """Three built-in networks on pictures of 8-bit pixels."""
    draw = np.random.default_rng(0)
    y = np.arange(60) % 3
    X = (draw.integers(0, 120, (60, 1, 8, 8)) + 60 * y[:, None, None, None]).astype(np.uint8)
    return rm.Mesh([rm.Node(net, X, y) for net in BUILT_IN], d=8).fit(rounds=1, progress=False)


@pytest.fixture(scope="module")
def vectors() -> rm.Mesh:
    """Own networks; the second node holds two classes of three, and does not end in a linear layer."""
    (X, y), (X2, y2) = samples(0), samples(1)
    some = y2 < 2
    torch.manual_seed(0)
    nodes = [rm.Node(Wide(), X, WORDS[y]), rm.Node(Ending(), X2[some], WORDS[y2[some]]), rm.Node(Choosy(), X, WORDS[y])]
    return rm.Mesh(nodes, method="alg3").fit(rounds=2, progress=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    before = [*sys.path]
    yield trained(tmp_path_factory.mktemp("export"), "export_net")
    sys.path[:] = before


def asked(path: Path, X: np.ndarray) -> list[np.ndarray]:
    """What onnxruntime says."""
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": X})


@pytest.mark.parametrize("node", [0, 1, 2])
def test_onnxruntime_says_what_a_built_in_network_says(pictures: rm.Mesh, tmp_path: Path, node: int) -> None:
    found = export(pictures, node, "onnx", tmp_path / "node.onnx", classifier=True)
    assert found.difference < 1e-5
    assert found.metadata["gauge"] == "folded into the last linear layer"
    onnx.checker.check_model(onnx.load(found.path), full_check=True)
    for m in (1, 7):
        X = np.random.default_rng(m).integers(0, 256, (m, 1, 8, 8), dtype=np.uint8)
        Z, scores, label = asked(found.path, X)
        np.testing.assert_allclose(Z, pictures.encode(X, node=node), atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(Z, axis=1), 1, atol=1e-5)
        labels, expected = pictures.predict(X, node=node, return_scores=True)
        np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-4)
        assert pictures.classes[label].tolist() == labels.tolist()


@pytest.mark.parametrize("form", ["onnx", "torch", "safetensors"])
@pytest.mark.parametrize("node", [0, 1])
def test_own_networks_in_every_form(vectors: rm.Mesh, tmp_path: Path, form: str, node: int) -> None:
    """With the gauge in the last layer or, where there is none, behind; classes that a node lacks are never chosen."""
    found = export(vectors, node, form, tmp_path / "node", classifier=True)
    assert found.difference < 1e-5
    assert ("folded" in found.metadata["gauge"]) == (node == 0)
    if form != "torch":
        return
    program = torch.export.load(found.path)
    extra = {"ratemesh.json": ""}
    torch.export.load(found.path, extra_files=extra)
    assert json.loads(extra["ratemesh.json"])["classes"] == WORDS.tolist()
    X = torch.from_numpy(samples(7, 30)[0])
    Z, scores, label = program.module()(X)
    torch.testing.assert_close(Z, vectors.encode(X, node=node), atol=1e-5, rtol=1e-4)
    assert WORDS[label].tolist() == vectors.predict(X, node=node).tolist()
    assert bool(scores[:, 2].isneginf().all()) == (node == 1)


@pytest.mark.parametrize("way", ["energy", "gaussian"])
def test_a_node_judges_in_the_file_as_it_does_in_the_mesh(vectors: rm.Mesh, tmp_path: Path, way: str) -> None:
    saved = vectors.saved
    mesh = rm.Mesh.of(replace(saved, card=saved.card.model_copy(update={"alone": way})))
    found = export(mesh, 0, "onnx", tmp_path / "node.onnx", classifier=True)
    assert found.metadata["judges_by"] == way
    X = samples(7, 30)[0]
    np.testing.assert_allclose(asked(found.path, X)[1], mesh.scores(X, node=0, fusion=way), rtol=1e-3, atol=1e-4)


def test_a_version_of_operators_can_be_asked_for(vectors: rm.Mesh, tmp_path: Path) -> None:
    export(vectors, 0, "onnx", tmp_path / "node.onnx", opset=18)
    assert [entry.version for entry in onnx.load(tmp_path / "node.onnx").opset_import if not entry.domain] == [18]


def test_raw_rows_of_a_table_go_in(run: Path, tmp_path: Path) -> None:
    """Also those of a network that is in a module beside the configuration."""
    done = call("export", run, "--node", "south", "--classifier", "-o", tmp_path / "south.onnx")
    assert done.returncode == 0, done.stderr
    assert "batch × 6 float32, raw rows of a table" in done.stdout
    assert "Out: features, scores, label. Gauge: folded into the last linear layer." in done.stdout
    assert "Largest difference from the original on random samples:" in done.stdout
    X, _ = rows(5, 40)
    mesh = rm.load(run)
    Z, _, label = asked(tmp_path / "south.onnx", X.astype(np.float32))
    np.testing.assert_allclose(Z, mesh.encode(X, node="south"), atol=1e-3)
    assert mesh.classes[label].tolist() == mesh.predict(X, node="south").tolist()
    props = {prop.key: prop.value for prop in onnx.load(tmp_path / "south.onnx").metadata_props}
    told = json.loads(props["ratemesh"])
    assert told["input"]["columns"] == ["a", "b", "c", "d", "e", "f"]
    assert told["classes"] == ["ash", "beech", "cedar"]


@pytest.mark.parametrize(("far", "dtype"), [(1e9, "float64"), (0.0, "float32")])
def test_rows_that_float32_cannot_tell_apart_are_taken_as_float64(
    run: Path, tmp_path: Path, far: float, dtype: str
) -> None:
    """And gaps are filled as they were in training."""
    saved = rm.load(run).saved
    moved = {"mean": tuple(m + far for m in saved.intake.mean), "fill": tuple(m + far for m in saved.intake.mean)}
    mesh = rm.Mesh.of(replace(saved, intake=saved.intake.model_copy(update=moved)))
    found = export(mesh, 0, "onnx", tmp_path / "node.onnx")
    assert found.metadata["input"]["dtype"] == dtype
    X, _ = rows(5, 20)
    X = (X + far).astype(dtype)
    X[3, 2] = np.nan
    np.testing.assert_allclose(asked(found.path, X)[0], mesh.encode(X, node=0), atol=1e-5)


def test_samples_that_are_whole_numbers_and_texts_go_in_as_networks_take_them(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    y = np.arange(60) % 2
    X = draw.integers(0, 5, (60, 4)) + 5 * y[:, None]
    net = nn.Sequential(nn.Embedding(10, 3), nn.Flatten(), nn.Linear(12, 8))
    mesh = rm.Mesh([rm.Node(net, X, y)]).fit(rounds=1, progress=False)
    found = export(mesh, 0, "onnx", tmp_path / "node.onnx")
    assert found.metadata["input"]["dtype"] == "int64"
    np.testing.assert_allclose(asked(found.path, X)[0], mesh.encode(X, node=0), atol=1e-5)
    intake = Texts(name="text", shape=(4,), idf=(1.0, 2.0, 1.0, 3.0))
    told = rm.Mesh.of(
        replace(
            rm.Mesh([rm.Node("mlp", X.astype(np.float32), y)], d=8).fit(rounds=1, progress=False).saved, intake=intake
        )
    )
    found = export(told, 0, "onnx", tmp_path / "node.onnx")
    prepared = intake.prepare(["a b c", "b c"])
    np.testing.assert_allclose(asked(found.path, prepared.numpy())[0], told.encode(["a b c", "b c"], node=0), atol=1e-5)


def test_weights_alone_are_enough_without_ratemesh(vectors: rm.Mesh, tmp_path: Path) -> None:
    export(vectors, 0, "safetensors", tmp_path / "node.safetensors")
    with safe_open(tmp_path / "node.safetensors", "pt") as held:
        told = json.loads(held.metadata()["ratemesh"])
        weights = {name.removeprefix("network."): held.get_tensor(name) for name in held.keys()}  # noqa: SIM118
    assert told["recipe"] == {"type": "toy_nodes:Wide", "arguments": {"hidden": 16, "d": 8}}
    network = Wide()
    network.load_state_dict(weights)
    X = torch.from_numpy(samples(7, 30)[0])
    with torch.no_grad():
        torch.testing.assert_close(normalize(network.eval()(X)), vectors.encode(X, node=0), atol=1e-5, rtol=1e-4)


def test_an_onnx_file_needs_neither_torch_nor_ratemesh(vectors: rm.Mesh, tmp_path: Path) -> None:
    export(vectors, 0, "onnx", tmp_path / "node.onnx")
    X = samples(7, 5)[0]
    np.save(tmp_path / "x.npy", X)
    code = """
import sys, numpy as np, onnxruntime
z, = onnxruntime.InferenceSession("node.onnx").run(None, {"x": np.load("x.npy")})
assert not {"torch", "ratemesh"} & set(sys.modules)
np.save("z.npy", z)
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), vectors.encode(X, node=0), atol=1e-5)


def test_a_network_that_cannot_be_followed_is_told_and_its_weights_can_be_had(vectors: rm.Mesh, tmp_path: Path) -> None:
    for form, words in (("onnx", "ONNX's exporter"), ("torch", "torch.export")):
        with pytest.raises(RatemeshError, match=rf"{words} cannot follow the network Choosy.*--format safetensors"):
            export(vectors, 2, form, tmp_path / "node")
        assert not (tmp_path / "node").exists()
    assert export(vectors, 2, "safetensors", tmp_path / "node").path.exists()


def test_a_file_that_says_something_else_is_not_put_in_place(vectors: rm.Mesh, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "node").write_text("before")
    monkeypatch.setattr(exporting, "TOLERANCE", 1e-12)
    with pytest.raises(RatemeshError, match=r"differs by .*Nothing was written"):
        export(vectors, 0, "safetensors", tmp_path / "node")
    assert (tmp_path / "node").read_text() == "before"


def test_what_cannot_be_exported_is_told(vectors: rm.Mesh, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(InputError, match=r"format must be a known one; got 'onyx'\. Did you mean 'onnx'"):
        export(vectors, 0, "onyx")
    with pytest.raises(InputError, match="opset must come with format 'onnx'"):
        export(vectors, 0, "torch", opset=18)
    with pytest.raises(InputError, match="opset must be one that the exporter knows; got 99"):
        export(vectors, 0, "onnx", tmp_path / "node", opset=99)
    assert not (tmp_path / "node").exists()
    with pytest.raises(InputError, match=r"node must be a number in 0\.\.2"):
        export(vectors, 5)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"needs onnxruntime.*pip install 'ratemesh\[onnx\]'"):
        export(vectors, 0, "onnx", tmp_path / "node")


def test_a_layer_that_is_used_twice_is_not_turned() -> None:
    """Turning its weights would also turn what goes into it."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, X: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.relu(self.layer(X)))

    torch.manual_seed(0)
    encoder = Encoder(Twice(), 4).eval()
    X = torch.randn(7, 4)
    assert folded(encoder, X) is not None  # the gauge is still the identity
    encoder.turn(torch.linalg.qr(torch.randn(4, 4))[0])
    assert folded(encoder, X) is None
