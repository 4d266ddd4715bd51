"""Where nodes run: engines know programs and messages, and no mathematics."""

from ratemesh.engines.inprocess import InProcess
from ratemesh.engines.protocol import Engine, EngineSpec
from ratemesh.engines.ray import Ray
from ratemesh.engines.zenoh_engine import Zenoh

ENGINES: dict[str, type[EngineSpec]] = {"inprocess": InProcess, "ray": Ray, "zenoh": Zenoh}

__all__ = ["ENGINES", "Engine", "EngineSpec"]
