"""What a step would cost with models and members that no machine here can hold: bytes, seconds and the share spent computing.

    python -m benchmarks.growth.estimate

Arithmetic, nothing is measured. The sizes of payloads follow from the code's bound for 1 bit and chunks of 64 by 64; everybody
downloads the results of all others, and uploads as much on average. Transfers of a step run beside the next step's training, so a
step takes the longer of both. What a step computes is 6 operations a parameter and token; the batch is shared by all members.
Coordinator, witnesses and the optimizer's own work are left out: docs/explanation/scale.md has what was measured of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CHUNK = 4096
BATCH_TOKENS = 2**22
"""Tokens of a step, of all members together: about what models of these sizes are trained with."""

OPERATIONS_PER_SECOND = {8e9: 4e14, 70e9: 3.2e15}
"""Of a member by parameters: an accelerator of 1,000 TFLOP/s in bfloat16 that reaches 40 %, and eight of them."""

LINES = {"100 Mbit/s": 12.5e6, "1 Gbit/s": 125e6}
MEMBERS = (64, 256)
COEFFICIENTS = (8, 64)
MB, GB = 1e6, 1e9


@dataclass(frozen=True, slots=True)
class Step:
    """One member's step. result_bytes: of its own result; received_bytes: of all others'. compute_s, transfer_s: seconds."""

    parameters: float
    members: int
    coefficients: int
    line: str
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


def step(parameters: float, members: int, coefficients: int, line: str) -> Step:
    """What a member's step costs. line: one of LINES."""
    own = result_bytes(parameters, coefficients)
    received = own * (members - 1)
    operations = 6 * parameters * BATCH_TOKENS / members
    seconds = operations / OPERATIONS_PER_SECOND[parameters]
    return Step(parameters, members, coefficients, line, own, received, seconds, received / LINES[line])


def steps() -> list[Step]:
    """Every combination."""
    return [
        step(parameters, members, coefficients, line)
        for parameters in OPERATIONS_PER_SECOND
        for members in MEMBERS
        for coefficients in COEFFICIENTS
        for line in LINES
    ]


def table(found: list[Step]) -> str:
    """A Markdown table."""
    lines = [
        "| parameters | members | k | a result | a step receives | line | computing | receiving | busy |",
        "|---:|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    lines += [
        f"| {each.parameters / 1e9:.0f} B | {each.members} | {each.coefficients} | {each.result_bytes / MB:,.0f} MB | "
        f"{each.received_bytes / GB:.1f} GB | {each.line} | {each.compute_s:.1f} s | {each.transfer_s:,.0f} s | "
        f"{100 * each.busy_share:.0f} % |"
        for each in found
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(steps()))
