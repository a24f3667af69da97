"""Run fuzz targets: `python -m tests.fuzz.run TARGET [TARGET ...] --runs 1000000`, or `all` for every target.

With atheris (the extra `fuzz`) the search is guided by coverage: libFuzzer keeps inputs that reach new code. Without it, inputs
are seeds changed at random, and the output says so. Targets run one after the other on one core; an input that is a finding is
kept as a file, ends its target, and makes the exit status 1. Of some inputs the memory is measured too.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from tests.fuzz import harness

INSTRUMENTED = (
    "psyche_core",
    "psyche_backend_tcp",
    "psyche_optim_distro",
    "psyche_optim_sparseloco",
    "psyche_p2p_quic",
    "tomllib",
)
COMPILED = [
    f"psyche_optim_distro.backends.numba.{name}"
    for name in ("compress_kernels", "decode_kernels", "matrix_kernels", "update_kernels")
]
SECONDS_PER_INPUT = 10
MAX_RSS_MB = 3072
MEMORY_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None  # only where to put a folder of our own


@dataclass(frozen=True, slots=True)
class Report:
    """How a target's run ended. peak_rss_mb: of the whole process, imported libraries included."""

    target: str
    engine: str
    runs: int
    seconds: float
    peak_rss_mb: int
    coverage: int
    finding: str | None

    def __str__(self) -> str:
        rate = self.runs / self.seconds if self.seconds else 0.0
        found = "no findings" if self.finding is None else f"FINDING {self.finding}"
        return (
            f"{self.target:<20} {self.runs:>9} runs {self.seconds:>8.1f} s {rate:>8.0f}/s "
            f"{self.peak_rss_mb:>5} MB  coverage {self.coverage:>5}  {found}"
        )


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description="Feed hostile bytes to decoders.")
    parser.add_argument("targets", nargs="+", metavar="TARGET", help=f"all, or: {', '.join(harness.names())}")
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs for each target (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the changes; drawn and printed when not given")
    parser.add_argument("--engine", choices=("atheris", "random"), default=None, help="default: atheris where it is installed")
    parser.add_argument("--findings", type=Path, default=None, help="folder for inputs that are findings (default: a new one)")
    parser.add_argument("--json", action="store_true", help="one JSON object a target instead of a line")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # the process of one target
    options = parser.parse_args()
    chosen = harness.names() if options.targets == ["all"] else options.targets
    unknown = sorted(set(chosen) - set(harness.names()))
    if unknown:
        parser.error(f"no target named {', '.join(unknown)}; there are: {', '.join(harness.names())}")

    if options.inside:
        _fuzz(chosen[0], options.runs, options.seed, options.findings)

    installed = importlib.util.find_spec("atheris") is not None
    if options.engine == "atheris" and not installed:
        parser.error("atheris is not installed: pip install 'psyche-core[fuzz]'")
    engine = options.engine or ("atheris" if installed else "random")
    if engine == "random":
        why = "as was asked" if options.engine else "for atheris is not installed"
        print(f"inputs are changed at random, without guidance by coverage, {why}", flush=True)
    seed = Random().randrange(1, 2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    findings = options.findings or Path(tempfile.mkdtemp(prefix="psyche-findings-"))
    search = _guided if engine == "atheris" else _random
    clean = True
    for name in chosen:
        report = search(name, options.runs, seed, findings)
        clean = clean and report.finding is None
        print(json.dumps(asdict(report)) if options.json else report, flush=True)

    return 0 if clean else 1


# ------------------------------------------------------------------------------------------------------- without atheris


def _random(name: str, runs: int, seed: int, findings: Path) -> Report:
    target, start = harness.load(name), time.monotonic()
    done, finding = harness.search(target, runs=runs, random=Random(seed))
    said = None if finding is None else f"{finding.what}; kept as {_keep(findings, name, finding.data)}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Report(name, "random", done, time.monotonic() - start, peak, 0, said)


def _keep(findings: Path, name: str, data: bytes) -> str:
    findings.mkdir(parents=True, exist_ok=True)
    path = findings / f"{name}-{time.time_ns()}"
    path.write_bytes(data)
    return str(path)


# ---------------------------------------------------------------------------------------------------------- with atheris


def _guided(name: str, runs: int, seed: int, findings: Path) -> Report:
    """Run the target in a process of its own, since libFuzzer ends the process it runs in without cleaning up."""
    findings.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "tests.fuzz.run", name, "--inside", "--runs", str(runs), "--seed", str(seed)]
    words += ["--findings", str(findings.resolve())]
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="psyche-fuzz-", dir=MEMORY_FOLDER) as folder:
        environment = os.environ | {"TMPDIR": folder}
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, env=environment)
    seconds = time.monotonic() - start
    output = done.stdout + done.stderr
    finding = None
    if done.returncode != 0:
        log = Path(_keep(findings, f"{name}-log", output.encode()))
        finding = f"exit status {done.returncode}, see {log}: " + " | ".join(_telling(output))

    return Report(
        target=name,
        engine="atheris",
        runs=_last_number(r"stat::number_of_executed_units:\s+(\d+)", output) or _last_number(r"^#(\d+)\s", output),
        seconds=seconds,
        peak_rss_mb=_last_number(r"stat::peak_rss_mb:\s+(\d+)", output),
        coverage=_last_number(r"\bcov: (\d+)", output),
        finding=finding,
    )


def _last_number(pattern: str, text: str) -> int:
    found = re.findall(pattern, text, flags=re.MULTILINE)
    return int(found[-1]) if found else 0


def _telling(output: str) -> list[str]:
    """The lines that say what was found."""
    words = ("Error", "Exceeded", "Exception", "ERROR:", "Warning", "Test unit written", "Base64")
    lines = [line.strip() for line in output.splitlines() if any(word in line for word in words)]
    return [line[:300] for line in lines[:6]] or output.splitlines()[-3:]


def _fuzz(name: str, runs: int, seed: int, findings: Path) -> None:
    """Hand the target to libFuzzer. Never returns."""
    import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]  # optional, and without types

    # Instrumented bytecode cannot be compiled to machine code.
    with atheris.instrument_imports(include=list(INSTRUMENTED), exclude=COMPILED, enable_loader_override=False):
        target = harness.load(name)

    counted = 0

    def run_one(data: bytes) -> None:
        nonlocal counted
        counted += 1
        target.run_or_measure(data, counted)

    def change(data: bytes, max_size: int, change_seed: int) -> bytes:
        random = Random(change_seed)
        if random.random() < 0.5:
            return target.mutated(data, random)[:max_size]

        return bytes(atheris.Mutate(data, max_size))

    corpus = tempfile.mkdtemp(prefix="corpus-")
    for number, data in enumerate(target.seeds):
        Path(corpus, f"{number:03}").write_bytes(data)
    arguments = [
        sys.argv[0],
        f"-runs={runs}",
        f"-seed={seed}",
        f"-max_len={target.max_bytes}",
        f"-timeout={SECONDS_PER_INPUT}",
        f"-rss_limit_mb={MAX_RSS_MB}",
        f"-artifact_prefix={findings / name}-",
        "-print_final_stats=1",
        "-len_control=0",
        corpus,
    ]
    atheris.Setup(arguments, run_one, custom_mutator=change)
    with harness.warnings_are_errors():
        atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
