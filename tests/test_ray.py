"""Engine `ray`: its words to the user, and the contract of all engines, played where there is only loopback."""

import re

import pytest

from ratemesh.engines.ray import Ray
from ratemesh.errors import InputError
from ratemesh.experiment.config import make_config
from toy_engines import HERE, alone
from toy_sites import Toys


def test_without_the_extra_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=re.escape("pip install 'ratemesh[ray]'")), Ray().open(Toys("chain", 2), 2):
        pass


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("engine.address=ray://head:10001", "engine.address must be 'host:port' or 'auto'; got 'ray://head:10001'"),
        ("engine.num_gpus=-1", "engine.num_gpus"),
        ("engine.adress=auto", "engine.adress is not a setting. Did you mean 'address'"),
    ],
)
def test_wrong_settings_are_refused(setting: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        make_config({"engine": {"name": "ray"}}, [setting])


def test_placement_does_not_decide_results_but_threads_may() -> None:
    def digest(**settings: object) -> str:
        return make_config({"engine": {"name": "ray", **settings}}).digest()

    assert digest() == digest(address="head:6379", num_cpus=0.5, num_gpus=1, restarts=0, patience=9)
    assert digest() != digest(threads=2)


def test_ray_keeps_the_contract_of_engines() -> None:
    """One child for all of it: Ray and its actors take most of the time to start."""
    files = [HERE / "test_engine_contract.py", HERE / "test_engine_runs.py"]
    done = alone("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "ray", *files, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed, \d+ deselected in", done.stdout)
    assert passed, done.stdout
    assert int(passed[1]) == 17
