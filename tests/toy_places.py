"""Sites that tell which GPUs their process may use; as a script, what Ray's actors say of it."""

import os
from typing import Any

import torch

from ratemesh.engines.protocol import Site, SiteFactory
from ratemesh.engines.ray import Ray
from ratemesh.messages.formats import Payload


class Place:
    """A site that only answers."""

    def stats(self) -> Payload:
        """Return the numbers of the GPUs that are visible here; −1 where nothing says so."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "-1")
        return {"gpus": torch.tensor([int(name) for name in visible.split(",") if name], dtype=torch.int64)}


class Places(SiteFactory):
    """Makes such sites."""

    def site(self, index: int) -> Any:
        return Place()

    def to_json(self) -> str:
        return ""

    @classmethod
    def from_json(cls, text: str) -> "Places":
        return cls()


def main() -> None:
    """Print the visible GPUs of two actors that reserve one each, and of two that reserve none; there are two."""
    import ray

    ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    from toy_places import Places as Importable  # not the class of this script, which actors could not find

    for num_gpus in (1, 0):
        with Ray(name="ray", num_cpus=0.1, num_gpus=num_gpus).open(Importable(), 2) as engine:
            print([answer["gpus"].tolist() for answer in engine.ask(Site.stats)])


if __name__ == "__main__":
    main()
