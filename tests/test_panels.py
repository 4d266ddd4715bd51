"""The paper's experiments by name: every file loads, and says what the paper says where it is the paper's."""

import pytest

from ratemesh.errors import InputError
from ratemesh.studies.panels import PANELS, SCALES, load_panel, panel_file


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", PANELS)
def test_every_panel_loads(name: str, scale: str) -> None:
    config = load_panel(name, scale, ["seed=3"])
    assert config.seed == 3
    assert config.data.name == name.partition("-")[0]
    nodes = name.partition("-")[2].partition("x")[0]
    assert (config.graph.nodes, config.d) == (10 if nodes == "iid" else int(nodes), 128)
    assert config.method.name == ("alg1" if nodes == "iid" else "alg3")


@pytest.mark.parametrize(
    ("name", "lr", "gamma"),
    [
        ("mnist-iid", 0.1, 1.0),
        ("mnist-5x4", 0.1, 1.0),
        ("cifar10-iid", 0.01, 2.0),
        ("cifar10-4x5", 0.01, 2.0),
    ],
)
def test_the_papers_scale_is_the_papers(name: str, lr: float, gamma: float) -> None:
    config = load_panel(name, "paper")
    local, method = config.local, config.method.model_dump()
    assert (config.rounds, local.epochs, local.batch_size, local.lr, local.weight_decay) == (1000, 5, 1000, lr, 1e-5)
    assert local.schedule == "constant"
    assert not local.augment.enabled
    assert (method["rho"], method["gamma"], method["eps2"], method["objective_scale"]) == (0.1, gamma, 0.5, "paper")
    assert (method["running"]["beta"], method["gauge"]["enabled"], method["warm_start"]["epochs"]) == (1, False, 0)
    names = [spec.name for spec in config.encoders]
    assert names == (["conv4"] if name.startswith("mnist") else ["resnet18", "resnet34", "vgg11", "vgg16"])


@pytest.mark.parametrize(("words", "message"), [(("mnst-iid", "small"), "mnist-iid"), (("mnist-iid", "tiny"), "scale")])
def test_unknown_names_are_answered_with_known_ones(words: tuple[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        panel_file(*words)
