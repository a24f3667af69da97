"""A deterministic simulator of whole runs that attacks the protocol and checks its invariants; `psyche sim` is its command.

`world` runs a script. `members` are the simulated members, `replicas` their models, `injection` what goes wrong, `invariants`
what must hold; a *liar* is a Byzantine member. Coordinator and client machines are the real ones; network, clock, disks and model
are simulated. `run_script(generate(seed))` plays a run and returns a `RunResult`, whose `failure` names the invariant that broke.
See docs/explanation/simulator.md.
"""

from __future__ import annotations

from psyche_core.simulator.generate import generate
from psyche_core.simulator.run_result import RunResult, SimFailure
from psyche_core.simulator.script import Fault, Script, Shape
from psyche_core.simulator.shrink import shrunk
from psyche_core.simulator.world import World, run_script

__all__ = ["Fault", "RunResult", "Script", "Shape", "SimFailure", "World", "generate", "run_script", "shrunk"]
