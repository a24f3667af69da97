"""Import a plugin's module in a process of its own, for `psyche plugins check`: what cannot be caught, and what cannot be undone.

A module that calls os._exit, or crashes in native code, would end the check itself, even with exit status 0. What it changes for
the whole program, such as torch's default dtype, would change the training of all others.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from psyche_core.plugins.child_process import run_alone

IMPORT_SECONDS = 120
"""Time limit of an import."""

_MARK = "psyche-imported "
_PROBE = """
import importlib, json, random, sys
state = random.getstate()
try:
    importlib.import_module(sys.argv[1])
except BaseException:
    pass  # the check imports it again and says what was raised
changed = [] if random.getstate() == state else ["the state of random"]
torch = sys.modules.get("torch")
if hasattr(torch, "get_default_dtype"):
    if torch.get_default_dtype() != torch.float32:
        changed.append(f"torch's default dtype to {torch.get_default_dtype()}")
    if torch.are_deterministic_algorithms_enabled():
        changed.append("torch.use_deterministic_algorithms")
print("\\n" + sys.argv[2] + json.dumps(changed), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Imported:
    """What importing did to its process.

    Attributes:
        problem: why no program that imports it goes on; empty if it does, or if importing raises.
        changed: what it changed for all others.
    """

    problem: str = ""
    changed: tuple[str, ...] = ()


def try_import(module: str) -> Imported:
    """Import a module in another process, which finds what this one finds."""
    done = run_alone([sys.executable, "-c", _PROBE, module, _MARK], seconds=IMPORT_SECONDS)
    if done.status is None:
        return Imported(f"importing it did not end within {IMPORT_SECONDS} s")

    last = (done.output.decode(errors="replace").splitlines() or [""])[-1]
    if not last.startswith(_MARK):
        return Imported(
            f"importing it ended the process, with exit status {done.status}: "
            "a module must not call os._exit, nor crash in native code"
        )
    return Imported(changed=tuple(json.loads(last.removeprefix(_MARK))))
