"""Where nodes run: engines know programs and messages, and no mathematics."""

from ratemesh.engines.inprocess import InProcess
from ratemesh.engines.protocol import Engine, EngineSpec

ENGINES: dict[str, type[EngineSpec]] = {"inprocess": InProcess}

__all__ = ["ENGINES", "Engine", "EngineSpec"]
