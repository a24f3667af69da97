"""What keeping a journal of applied rounds costs, and how fast it is replayed: the local testnet's model and real results of it.

    python -m benchmarks.journal [--run examples/local_testnet/state.toml] [--members 3] [--rounds 1000] [--trained 100]
                                 [--folder PATH] [--json]

The run's model and optimizer are built for every member, which train `--trained` rounds on random tokens, as overlapped as in a
run. The same results are then accepted again and again up to `--rounds` rounds. A payload stands in a journal once, so cost and
size of a step are measured over the rounds that were trained; reading and replaying take all.

    step_ms, step_ms_p90   of the journal in a round: its results, a sync, the round, a sync
    sync_share             part of that in the two syncs: what the disk takes
    payload_bytes          of all results of a round
    bytes_per_step         growth of the file, payloads included
    file_mb, read_s        the file of all rounds, and the time to read it, every byte checked
    replay_s               to apply all rounds again, each with the model's digest compared
    apply_s                of it, what apply and digest take without a journal
    equal                  whether the masters are those of the last round afterwards, bit for bit
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from psyche_core.config.run_config import parse_run_file
from psyche_core.interfaces.data import Samples
from psyche_core.plugins import PluginRegistry
from psyche_core.training.build import Compute, build_trainer
from psyche_core.training.checkpoints import sources
from psyche_core.training.checkpoints.journal.journal import Journal
from psyche_core.training.checkpoints.journal.replay import replay
from psyche_core.training.checkpoints.journal_records import AppliedRound, StoredResult
from psyche_core.training.trainer import APPLY_DELAY, Trainer
from psyche_core.types import BatchId

INSTANCE = bytes(32)
SEQUENCES = 2
"""Of each member's share."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("examples/local_testnet/state.toml"), help="a run's file")
    parser.add_argument("--members", type=int, default=3, help="members whose results a round has (default: 3)")
    parser.add_argument("--rounds", type=int, default=1000, help="rounds to keep and replay (default: 1000)")
    parser.add_argument("--trained", type=int, default=100, help="rounds that are trained (default: 100)")
    parser.add_argument("--folder", type=Path, help="where the journal lies while it is measured (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        figures = measure(Path(folder), given.run, members=given.members, rounds=given.rounds, trained=given.trained)
    table = "".join(f"{name:<20} {value}\n" for name, value in figures.items())
    sys.stdout.write(json.dumps(figures) + "\n" if given.json else table)


def measure(folder: Path, run_file: Path, *, members: int, rounds: int, trained: int) -> dict[str, Any]:
    """The figures of the module's docstring."""
    run = parse_run_file(run_file.read_text(encoding="utf-8"), source=str(run_file))
    source = sources.find(run.model.LLM.checkpoint, base=run_file.parent, cache=folder)
    registry = PluginRegistry.discover()

    def build() -> Trainer:
        compute = Compute(device="cpu", micro_batch_size=SEQUENCES)
        return build_trainer(
            registry_load=registry.load, model_config=run.model, run_id=run.run_id, source=source, compute=compute
        )

    payloads = _train([build() for _ in range(members)], trained, run.model.LLM.max_seq_len)
    first, again = build(), build()
    costs: list[float] = []
    in_sync = apply_seconds = 0.0
    with Journal.open(folder, "bench", instance=INSTANCE, limit_bytes=2**40) as journal:
        journal.begin(0, first.full_digest(), 0)
        empty = journal.size
        for step in range(1, rounds + 1):
            chosen = payloads[(step - 1) % trained]
            results = [_result(step, slot, payload) for slot, payload in enumerate(chosen)]
            began = time.perf_counter()
            rate = first.rate_of(step)
            first.apply(step, chosen, own_accepted=False, learning_rate=rate)
            applied = _applied(step, results, rate=rate)
            apply_seconds += time.perf_counter() - began

            began = time.perf_counter()
            for result, payload in zip(results, chosen, strict=True):
                journal.add_result(result, payload)
            first_sync = _timed_sync(journal)
            journal.add_applied(applied)
            second_sync = _timed_sync(journal)
            if step <= trained:
                costs.append(time.perf_counter() - began)
                in_sync += first_sync + second_sync
                grown = journal.size - empty

    with Journal.open(folder, "bench", instance=INSTANCE, limit_bytes=2**40) as journal:
        began = time.perf_counter()
        recovered = journal.read()
        read_seconds = time.perf_counter() - began
        assert recovered is not None
        began = time.perf_counter()
        last = replay(again, recovered, until=rounds)
        replay_seconds = time.perf_counter() - began
        file_bytes = journal.size

    return {
        "params": first.parameter_count,
        "members": members,
        "rounds": last,
        "step_ms": round(1e3 * statistics.median(costs), 3),
        "step_ms_p90": round(1e3 * statistics.quantiles(costs, n=10)[-1], 3),
        "sync_share": round(in_sync / sum(costs), 3),
        "payload_bytes": round(sum(len(payload) for each in payloads for payload in each) / trained),
        "bytes_per_step": round(grown / min(trained, rounds)),
        "file_mb": round(file_bytes / 1e6, 2),
        "read_s": round(read_seconds, 3),
        "replay_s": round(replay_seconds, 3),
        "apply_s": round(apply_seconds, 3),
        "equal": again.full_digest() == first.full_digest(),
    }


def _train(members: Sequence[Trainer], rounds: int, length: int) -> list[list[bytes]]:
    """Payloads of each round, one of each member; every result is accepted."""
    generator = torch.Generator().manual_seed(1)
    payloads: list[list[bytes]] = []
    for step in range(1, rounds + 1):
        for member in members:
            if step > APPLY_DELAY:
                member.apply(step - APPLY_DELAY, payloads[step - APPLY_DELAY - 1], own_accepted=True)
        payloads.append([])
        for member in members:
            ids = torch.randint(member.vocab_size, (SEQUENCES, length), generator=generator)  # (B, T)
            tokens = ids.numpy().astype("<u4").tobytes()
            payloads[-1].append(member.train(step, Samples(tokens, SEQUENCES, length, 4)).payload)
    return payloads


def _timed_sync(journal: Journal) -> float:
    began = time.perf_counter()
    journal.sync()
    return time.perf_counter() - began


def _result(step: int, slot: int, payload: bytes) -> StoredResult:
    return StoredResult(
        epoch=0,
        height=step,
        step=step,
        seed=step,
        slot=slot,
        share=(BatchId(8 * slot, 8 * slot + 7),),
        commitment=hashlib.sha256(b"%d %d" % (step, slot)).digest(),
        payload_hash=hashlib.sha256(payload).digest(),
        signature=bytes(64),
        trainer=bytes(32),
        signer=bytes(32),
    )


def _applied(step: int, results: Sequence[StoredResult], *, rate: float) -> AppliedRound:
    pairs = tuple((each.commitment, each.payload_hash) for each in results)
    return AppliedRound(epoch=0, height=step, step=step, learning_rate=rate, results=pairs)


if __name__ == "__main__":
    main()
