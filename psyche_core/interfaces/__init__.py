"""The contracts plugins implement. No torch, no numpy, no I/O: importing this package costs milliseconds.

Each module is one kind. Hooks (psyche_core.hookspecs) only hand over factories of these objects at set-up; the hot path calls
the objects. Every contract says what is guaranteed and what is not, and has a conformance class in psyche_core.testing.
"""

from __future__ import annotations

from psyche_core.interfaces.backend import Backend, BackendServer, StateUpdate
from psyche_core.interfaces.data import DataProvider
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.optimizer_parts import OptimizerPart, OptimizerParts, PartValues
from psyche_core.interfaces.relay import Relay
from psyche_core.interfaces.replay import AppliedStep, ChunkGroup, Replay
from psyche_core.interfaces.sharding import Placement, RankGroup, ShardingEngine
from psyche_core.interfaces.store import ModelStore
from psyche_core.interfaces.tracker import TrackedRun, Tracker
from psyche_core.interfaces.transport import Incoming, Opened, PeerPath, Transport, TransportStats

__all__ = [
    "AppliedStep",
    "Backend",
    "BackendServer",
    "ChunkGroup",
    "DataProvider",
    "Incoming",
    "Model",
    "ModelStore",
    "Opened",
    "Optimizer",
    "OptimizerPart",
    "OptimizerParts",
    "PartValues",
    "PeerPath",
    "Placement",
    "RankGroup",
    "Relay",
    "Replay",
    "ShardingEngine",
    "StateUpdate",
    "TrackedRun",
    "Tracker",
    "Transport",
    "TransportStats",
]
