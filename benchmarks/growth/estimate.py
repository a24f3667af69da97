"""What a step would cost with models and members that no machine here can hold: bytes, seconds and the share spent computing.

    python -m benchmarks.growth.estimate
    python -m benchmarks.growth.estimate --parameters 1B --members 60 --lines 100 --tokens 500000 --tflops 40

Arithmetic, nothing is measured. Sizes of results follow from the code's bound for 1 bit and chunks of 64 by 64; everybody
downloads the results of all others, and uploads as much on average. Transfers of a step run beside the next step's training, so a
step takes the longer of both. What a step computes is 6 operations a parameter and token; the batch is shared by all members.
Coordinator, witnesses and the optimizer's own work are left out: docs/explanation/scale.md has what was measured of them.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.options import positive, several, whole

CHUNK = 4096
BATCH_TOKENS = 2**22
"""Tokens of a step, of all members together: about what models of these sizes are trained with."""

TFLOPS = {8e9: 400.0, 70e9: 3200.0}
"""Of a member by parameters: an accelerator of 1,000 TFLOP/s in bfloat16 that reaches 40 %, and eight of them."""

LINES = (100.0, 1000.0)
"""Mbit/s of a member's line."""
MEMBERS = (64, 256)
COEFFICIENTS = (8, 64)
UNITS = {"M": 1e6, "B": 1e9}


@dataclass(frozen=True, slots=True)
class Step:
    """One member's step. result_bytes: of its own result; received_bytes: of all others'. compute_s, transfer_s: seconds."""

    parameters: float
    members: int
    coefficients: int
    megabits: float
    result_bytes: float
    received_bytes: float
    compute_s: float
    transfer_s: float

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return max(self.compute_s, self.transfer_s)

    @property
    def busy_share(self) -> float:
        """Share of the time in which a member computes."""
        return self.compute_s / self.step_s


def result_bytes(parameters: float, coefficients: int) -> float:
    """Bytes of a 1-bit result: for each chunk which coefficients, as a subset of all, and a sign of each."""
    bits = math.log2(math.comb(CHUNK, coefficients)) + coefficients
    return parameters / CHUNK * bits / 8


def step(
    parameters: float, members: int, *, coefficients: int, megabits: float, tflops: float, tokens: float = BATCH_TOKENS
) -> Step:
    """What a member's step costs. megabits: its line. tflops: what it computes with. tokens: of a step, of all members."""
    own = result_bytes(parameters, coefficients)
    received = own * (members - 1)
    seconds = 6 * parameters * tokens / members / (tflops * 1e12)
    return Step(parameters, members, coefficients, megabits, own, received, seconds, received * 8 / (megabits * 1e6))


def table(found: Sequence[Step]) -> str:
    """A Markdown table."""
    lines = [
        "| parameters | members | k | a result | a step receives | line | computing | receiving | busy |",
        "|---:|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    lines += [
        f"| {size_name(each.parameters)} | {each.members} | {each.coefficients} | {_bytes(each.result_bytes)} | "
        f"{_bytes(each.received_bytes)} | {_line(each.megabits)} | {_seconds(each.compute_s)} | {_seconds(each.transfer_s)} | "
        f"{100 * each.busy_share:.0f} % |"
        for each in found
    ]
    return "\n".join(lines)


def size_name(parameters: float) -> str:
    """A number of parameters for people: "8 B", "20 M"."""
    return f"{parameters / 1e9:g} B" if parameters >= 1e9 else f"{parameters / 1e6:g} M"


def _bytes(count: float) -> str:
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:,.0f} MB" if count >= 1e7 else f"{count / 1e6:.2g} MB"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def _line(megabits: float) -> str:
    return f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits:g} Mbit/s"


def _parameters(text: str) -> float:
    """A type of argparse: a number of parameters, as 20M or 8B."""
    unit = UNITS.get(text[-1:].upper())
    return positive(text[:-1]) * unit if unit else positive(text)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.growth.estimate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = ",".join(size_name(size).replace(" ", "") for size in TFLOPS)
    parser.add_argument("--parameters", type=several(_parameters), default=sizes, help="of the model, as 20M or 8B (%(default)s)")
    parser.add_argument(
        "--members", type=several(whole(2, 256)), default=",".join(map(str, MEMBERS)), help="of the run (%(default)s)"
    )
    parser.add_argument(
        "--coefficients",
        type=several(whole(1, CHUNK)),
        default=",".join(map(str, COEFFICIENTS)),
        help="k, that DisTrO sends of each chunk of 4,096 (%(default)s)",
    )
    parser.add_argument(
        "--lines",
        type=several(positive),
        default=",".join(f"{line:g}" for line in LINES),
        help="Mbit/s of a member's line (%(default)s)",
    )
    parser.add_argument("--tokens", type=positive, default=BATCH_TOKENS, help="of a step, of all members together (%(default)s)")
    parser.add_argument(
        "--tflops",
        type=positive,
        help="what a member really computes with, in TFLOP/s (default: 400 below 10 B parameters, 3,200 from then on)",
    )
    return parser.parse_args(words)


def steps(given: argparse.Namespace) -> list[Step]:
    """Every combination of the options."""
    sizes, members, coefficients, lines = (
        [read(word) for word in text.split(",")]
        for read, text in (
            (_parameters, given.parameters),
            (int, given.members),
            (int, given.coefficients),
            (float, given.lines),
        )
    )
    return [
        step(
            size,
            int(count),
            coefficients=int(k),
            megabits=line,
            tflops=given.tflops or TFLOPS[70e9 if size >= 1e10 else 8e9],
            tokens=given.tokens,
        )
        for size, count, k, line in itertools.product(sizes, members, coefficients, lines)
    ]


if __name__ == "__main__":
    print(table(steps(arguments())))
