"""A deterministic simulator of whole runs that attacks the protocol and checks its invariants; `psyche sim` is its command.

Real coordinator and client machines; simulated network, clock, disks and model. A run is `run_script(generate(seed))`; what
came of it is a `RunResult`, whose `failure` names the invariant that broke. See docs/explanation/simulator.md.
"""

from __future__ import annotations

from psyche_core.simulator.failure import SimFailure
from psyche_core.simulator.generate import generate
from psyche_core.simulator.script import Fault, Script, Shape
from psyche_core.simulator.shrink import shrunk
from psyche_core.simulator.world import RunResult, World, run_script

__all__ = ["Fault", "RunResult", "Script", "Shape", "SimFailure", "World", "generate", "run_script", "shrunk"]
