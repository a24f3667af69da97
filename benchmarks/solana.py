"""The coordinator's program at its largest, 256 clients and 32 witnesses, in an SVM in this process: what instructions compute.

    python -m benchmarks.solana [--rounds 3] [--json]

The program is the one that the wheel ships; the SVM is LiteSVM, which counts compute units as validators do. States are put into
the account, each command is sent, and what it wrote is compared with `psyche_core.coordinator` before its units are believed.
Rounds of 3 and of 256 clients are played besides, statement by statement, to count what a round costs.

What is measured:
    compute_units           most units of each instruction of all programs over all cases, nobody verifying. An instruction has
                            200,000 unless its transaction asks for more. Torn runs are among the cases: queues full of scraps
                            with gaps between them; and no election was drawn before
    compute_units_verifying the same with verification_percent = 10; empty until the program draws challenges
    image_bytes             of the canonical image; rent_sol: what both accounts of a run hold while it exists, and give back
    read_bytes_per_member_epoch   and three figures more of what a member reads of such an epoch: see `solana_reading`
    transactions_per_round  that the coordinator needs: the statements of the witnesses, when all of them speak
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping

import anyio

from benchmarks import solana_programs, solana_reading
from benchmarks.solana_rounds import PlayedRun
from plugins.backend_solana.tests.svm.coordinator_svm import CoordinatorSvm
from plugins.backend_solana.tests.svm.largest import compute_units
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES, INSTANCE_BYTES
from psyche_core.coordinator import canonical_image as image
from psyche_core.types import MAX_CLIENTS

LAMPORTS_PER_SOL = 10**9
SIGNATURE_LAMPORTS = 5000
CALM = "usual, {percent} % verify"
TORN = "worst, {percent} % verify"


def most(cases: Mapping[str, int]) -> dict[str, int]:
    """Most units of each instruction: a case is called `instruction: what is special about it`."""
    found: dict[str, int] = {}
    for name, units in cases.items():
        instruction = name.split(":", 1)[0]
        found[instruction] = max(found.get(instruction, 0), units)
    return found


def play(rounds: int, clients: int) -> tuple[float, int]:
    """Transactions of a round, and compute units of all of them together: means over so many rounds."""
    run = PlayedRun(clients, rounds=rounds + 1)
    run.gather()
    run.warm_up()
    run.play_round()  # the first has nothing to judge
    sent = [each for _ in range(rounds) for each in run.play_round()]
    return len(sent) / rounds, sum(each.units for each in sent) // rounds


def measure(rounds: int) -> dict[str, object]:
    found = compute_units()
    without = {**most(found["accounts"]), **most(found[CALM.format(percent=0)])}
    torn = most(found[TORN.format(percent=0)])
    torn_verifying = most(found.get(TORN.format(percent=10), {}))
    calm = most(found.get(CALM.format(percent=10), {}))
    chain = CoordinatorSvm(members=1)
    rent = sum(chain.svm.minimum_balance_for_rent_exemption(size) for size in (ACCOUNT_BYTES, INSTANCE_BYTES))
    played = {f"{clients} clients": play(rounds, clients) for clients in (3, MAX_CLIENTS)}
    coordinator = {name: max(without.get(name, 0), torn.get(name, 0)) for name in sorted({*without, *torn})}
    return {
        "compute_units": {
            **{f"coordinator.{name}": units for name, units in coordinator.items()},
            **most(solana_programs.compute_units()),
        },
        "compute_units_verifying": {
            name: max(calm.get(name, 0), torn_verifying.get(name, 0)) for name in sorted({*calm, *torn_verifying})
        },
        "image_bytes": image.SIZE,
        "account_bytes": ACCOUNT_BYTES + INSTANCE_BYTES,
        "rent_sol": rent / LAMPORTS_PER_SOL,
        "transactions_per_round": {name: sent for name, (sent, _) in played.items()},
        "compute_units_per_round": {name: units for name, (_, units) in played.items()},
        **anyio.run(solana_reading.following, rounds),
        "fees_per_round_sol": {name: sent * SIGNATURE_LAMPORTS / LAMPORTS_PER_SOL for name, (sent, _) in played.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solana", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds to play (3)")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    figures = measure(options.rounds)
    if options.json:
        print(json.dumps(figures))
        return 0

    for name, value in figures.items():
        if isinstance(value, dict):
            print(name)
            for instruction, units in value.items():
                print(f"  {instruction:32} {units:>10,}")
        else:
            print(f"{name:28} {value:>10,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
