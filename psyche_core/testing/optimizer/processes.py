"""Conformance of an optimizer that claims to be exact: another process gets the same bits; part of `OptimizerConformance`.

In one process everything that depends on `hash("…")`, on the order of a set or on the number of threads looks deterministic.
Members of a run are processes of their own, each with a hash seed of its own.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.optimizer.base import OptimizerTests
from psyche_core.testing.optimizer.replicas import digest, shared

OTHER_THREADS = 3
TIMEOUT = 120.0
"""Seconds for the other process, which imports torch."""

_CHILD = """
import atexit, gc, importlib.util, json, sys
atexit.register(gc.freeze)
gc.set_threshold(100_000)
given = json.load(sys.stdin)
sys.path[:] = given["path"]
import torch
torch.set_num_threads(given["threads"])
spec = importlib.util.spec_from_file_location("psyche_conformance_in_another_process", given["file"])
module = found = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
for part in given["name"].split("."):
    found = getattr(found, part)
tests = found()
tests.replica()
print("made", flush=True)
print(tests.digest_after([[bytes.fromhex(payload) for payload in step] for step in given["payloads"]]))
"""


class ProcessTests(OptimizerTests):
    """What two processes must agree on."""

    def digest_after(self, payloads: Sequence[Sequence[bytes]]) -> str:
        """The digest of masters and public state of a new member that has applied the payloads of each step, from step 1 on."""
        optimizer = self.replica().optimizer
        for step, accepted in enumerate(payloads, start=1):
            optimizer.apply(step, accepted, learning_rate=self.learning_rate, own_accepted=False)
        return digest(shared(optimizer))

    def test_another_process_gets_the_same_bits(self) -> None:
        """Another hash seed and another number of threads; the same payloads in another order. For exact optimizers."""
        if not self.replica().optimizer.exact:
            pytest.skip("this optimizer does not claim to be exact")

        file, name = inspect.getsourcefile(type(self)), type(self).__qualname__
        if file is None or "<" in name:
            pytest.skip("another process cannot make this test class: it is not at the top of a file")

        payloads = [[self.payload(step=step, data=10 * step + data) for data in range(3)] for step in (1, 2, 3)]
        given = {
            "path": sys.path,
            "threads": OTHER_THREADS,
            "file": file,
            "name": name,
            "payloads": [[payload.hex() for payload in reversed(step)] for step in payloads],
        }
        seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
        done = subprocess.run(  # noqa: S603  # our own interpreter
            [sys.executable, "-c", _CHILD],
            input=json.dumps(given),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        if "made" not in done.stdout.split():
            pytest.skip(f"another process cannot make this test class: {last}")
        if done.returncode:
            pytest.fail(f"apply failed in another process, with the payloads that it took in this one: {last}")
        if done.stdout.split()[-1] != self.digest_after(payloads):
            where = f"in a process with PYTHONHASHSEED={seed} and {OTHER_THREADS} threads"
            message = (
                f"after the same payloads the masters or the public state have other bits {where}; an optimizer that is exact "
                "gives the same on all members: apply must not depend on hash(), on the order of a set, of the payloads or on "
                "the number of threads (psyche_core.interfaces.Optimizer)"
            )
            pytest.fail(message)
