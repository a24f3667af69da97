"""A deterministic simulator of whole runs that attacks the protocol and checks its invariants; `psyche sim` is its command.

Real coordinator and client machines; simulated network, clock, disks and model. A run is `run_script(generate(seed))`; what
came of it is a `RunResult`, whose `failure` names the invariant that broke. See docs/explanation/simulator.md.
"""

from __future__ import annotations

from psyche_core.testing.sim.failure import SimFailure
from psyche_core.testing.sim.generate import generate
from psyche_core.testing.sim.script import Fault, Script, Shape
from psyche_core.testing.sim.shrink import shrunk
from psyche_core.testing.sim.world import RunResult, World, run_script

__all__ = ["Fault", "RunResult", "Script", "Shape", "SimFailure", "World", "generate", "run_script", "shrunk"]
