"""Play seeds in the simulator for another program, with the interpreted or the compiled engine.

    python tools/seed_player.py [--compiled FOLDER] [--fingerprints]

It reads a line for each request, a JSON list of seeds, and answers each with a line, a JSON object `Reply`, until its input ends.
It is a program of its own because a process can import only one engine; `Players` starts several of it and hands out the seeds.
All runs have all faults and eight members.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import gc
import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypedDict

from compiled_engine import CompiledEngineError, use_compiled

AT_A_TIME = 8
"""Seeds of a request."""


class Played(TypedDict):
    """A run. broken: the invariant that broke, None if all held; fingerprint: all that could be different, if asked for.

    ended_early: why the run ended at a state for which the protocol promises nothing, empty if it did not.
    """

    seed: int
    steps: int
    events: int
    ended_early: str
    broken: str | None
    fingerprint: dict[str, Any] | None


class Reply(TypedDict):
    """The runs of a request, in order, and the processor time that they took together."""

    runs: list[Played]
    cpu_seconds: float


class PlayerError(Exception):
    """A player ended early. The message has its last words."""


class Players:
    """Some players, each in a process of its own. A context manager: leaving it ends them.

    Args:
        jobs: number of processes.
        compiled: the folder of a compiled engine; None to play with the source.
        fingerprints: whether runs are described in full.
    """

    def __init__(self, jobs: int, *, compiled: Path | None = None, fingerprints: bool = False) -> None:
        command = [sys.executable, str(Path(__file__).resolve())]
        command += ["--fingerprints"] if fingerprints else []
        paths = [str(Path(__file__).resolve().parents[1])]
        if compiled is not None:
            command += ["--compiled", str(compiled)]
            paths.insert(0, str(compiled))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._jobs = jobs
        self._free: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        pipe = subprocess.PIPE
        self._all = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)  # noqa: S603 - ourselves
            for _ in range(jobs)
        ]
        for process in self._all:
            self._free.put(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._all:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                with suppress(BrokenPipeError):
                    _there(stream).close()

    def play(self, seeds: Sequence[int]) -> Iterator[Reply]:
        """Play the seeds; yields replies as they come. Raises PlayerError."""
        requests = [list(seeds[place : place + AT_A_TIME]) for place in range(0, len(seeds), AT_A_TIME)]
        with concurrent.futures.ThreadPoolExecutor(self._jobs) as pool:
            asked = [pool.submit(self._ask, request) for request in requests]
            try:
                for done in concurrent.futures.as_completed(asked):
                    yield done.result()
            finally:
                for one in asked:
                    one.cancel()

    def _ask(self, seeds: list[int]) -> Reply:
        process = self._free.get()
        with suppress(BrokenPipeError):
            _there(process.stdin).write(f"{json.dumps(seeds)}\n")
            _there(process.stdin).flush()
        answer = _there(process.stdout).readline()
        self._free.put(process)
        if not answer:
            message = f"a process that plays seeds ended early: {_there(process.stderr).read().strip()}"
            raise PlayerError(message)

        reply: Reply = json.loads(answer)
        return reply


def _there(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _reply(seeds: list[int], *, fingerprints: bool) -> Reply:
    """Runs make much garbage but no leaks, so garbage is collected only between requests."""
    gc.disable()
    started = time.process_time()
    runs = [_played(seed, fingerprints=fingerprints) for seed in seeds]
    gc.enable()
    gc.collect()
    return {"runs": runs, "cpu_seconds": time.process_time() - started}


def _played(seed: int, *, fingerprints: bool) -> Played:
    from psyche_core.simulator.parallel_runs import RunOptions, one_run
    from psyche_core.simulator.script import KINDS

    options = RunOptions(kinds=KINDS, shrink=0)
    result, found, _ = one_run(options, seed)
    return {
        "seed": seed,
        "steps": result.steps,
        "events": result.events,
        "ended_early": result.no_guarantee,
        "broken": None if found is None else f"{found.invariant}: {found.sentence}",
        "fingerprint": _fingerprint(options.script(seed)) if fingerprints else None,
    }


def _fingerprint(script: Any) -> dict[str, Any]:
    """All of a run's result, and SHA-256 digests of the final coordinator state's bytes and of all that its timeline tells."""
    from psyche_core.coordinator.serialization import to_plain
    from psyche_core.simulator.world import World
    from psyche_core.wire.codec import encode

    timeline: list[tuple[float, str, str]] = []
    try:
        world = World(script, timeline=timeline)
        result = world.run()
    except Exception as error:  # a defect of the simulator, which both engines must have
        return {"error": f"{type(error).__name__}: {error}"}

    values = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    failure = values.pop("failure")
    return {
        **values,
        "failure": None if failure is None else [failure.invariant, failure.time, failure.sentence],
        "timeline": hashlib.sha256(repr(timeline).encode()).hexdigest(),
        "entries": len(timeline),
        "state": hashlib.sha256(encode(to_plain(world.server.state))).hexdigest(),
    }


def main() -> int:
    """Return 1 if the engine is not compiled where it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiled", type=Path, help="folder of the compiled engine, also the first of PYTHONPATH")
    parser.add_argument("--fingerprints", action="store_true", help="describe each run in full")
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C, and then ends the players
    if asked.compiled is not None:
        try:
            use_compiled(asked.compiled)
        except CompiledEngineError as error:
            print(error, file=sys.stderr)
            return 1

    gc.freeze()  # modules stay: looking through them after each request takes a twentieth of the time
    for line in sys.stdin:
        print(json.dumps(_reply(json.loads(line), fingerprints=asked.fingerprints)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
