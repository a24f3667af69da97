"""What a fuzz target is, how one input is run, and what counts as a finding.

A target is a module of `tests.fuzz.targets` with

    TARGET(data)     gives the bytes to a decoder, and asserts what must hold of what comes out
    DOCUMENTED       the errors its decoder may raise; everything else is a finding
    seeds()          valid encodings to start from, made by code
    MAX_BYTES        longest input worth trying
    MEMORY           (bytes per input byte, constant): most that Python may have allocated at any moment of a run
    mutate(...)      optional: a change that keeps the input well formed, so that the inner decoders are reached

Findings are any other exception, a failed assertion, a warning, and memory over the bound.
"""

from __future__ import annotations

import importlib
import pkgutil
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from tests.fuzz import mutation, targets

MEASURED = 64

Mutate = Callable[[bytes, Random], bytes]


class MemoryExceeded(AssertionError):
    """A decoder allocated more for an input than its bound allows."""


@dataclass(frozen=True, slots=True)
class Target:
    """A loaded target; see the module."""

    name: str
    run: Callable[[bytes], None]
    documented: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    max_bytes: int
    memory: tuple[int, int]
    structured: Mutate | None

    def __call__(self, data: bytes) -> bool:
        """Run one input; whether it was accepted. Raises whatever is a finding."""
        try:
            self.run(data)
        except self.documented:
            return False

        return True

    def measured(self, data: bytes) -> int:
        """Run one input; the peak of memory allocated meanwhile, in bytes. Raises MemoryExceeded beyond the bound."""
        was_tracing = tracemalloc.is_tracing()
        if not was_tracing:
            tracemalloc.start()
        try:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            self(data)
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            if not was_tracing:
                tracemalloc.stop()

        per_byte, constant = self.memory
        if peak > per_byte * len(data) + constant:
            message = f"{self.name}: {len(data)} bytes made it allocate {peak}, over {per_byte} per byte and {constant}"
            raise MemoryExceeded(message)

        return peak

    def run_or_measure(self, data: bytes, number: int) -> None:
        """Run input `number` of a search; of every MEASURED-th the memory is measured, which is slow."""
        if number % MEASURED == 0:
            self.measured(data)
        else:
            self(data)

    def mutated(self, data: bytes, random: Random) -> bytes:
        """A changed input: well formed where the target knows how, else with bytes changed anywhere."""
        if self.structured is not None and random.random() < 0.6:
            data = self.structured(data, random)
        else:
            data = mutation.change_bytes(data, random, others=self.seeds)
        return data[: self.max_bytes]


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that a decoder did not stand. what: one line about the exception."""

    data: bytes
    what: str


def search(target: Target, *, runs: int, random: Random) -> tuple[int, Finding | None]:
    """Try the seeds, then changes of them, some many times over. Returns how many inputs were run, and what was found."""
    data = b""
    with warnings_are_errors():
        for number in range(1, runs + 1):
            if number <= len(target.seeds):
                data = target.seeds[number - 1]
            else:
                data = target.mutated(random.choice(target.seeds) if random.random() < 0.6 else data, random)
            try:
                target.run_or_measure(data, number)
            except Exception as error:  # whatever is not documented
                return number, Finding(data, f"{type(error).__name__}: {error}")

    return runs, None


@contextmanager
def warnings_are_errors() -> Iterator[None]:
    """Inside, a warning is an exception, and so a finding."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def names() -> list[str]:
    """All targets, by name."""
    return sorted(module.name for module in pkgutil.iter_modules(targets.__path__))


def load(name: str) -> Target:
    """Import a target and make its seeds. Raises KeyError for an unknown name."""
    if name not in names():
        raise KeyError(name)

    module = importlib.import_module(f"tests.fuzz.targets.{name}")
    return Target(
        name=name,
        run=module.TARGET,
        documented=module.DOCUMENTED,
        seeds=tuple(module.seeds()),
        max_bytes=module.MAX_BYTES,
        memory=module.MEMORY,
        structured=getattr(module, "mutate", None),
    )
