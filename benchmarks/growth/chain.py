"""How a coordinator on Solana grows with its members: compute units, transactions, fees, a member's reads; and with rounds.

The shipped program runs in LiteSVM in this process (`benchmarks.solana_rounds`), so times are those of the SVM's execution alone:
no validator, no consensus, no network, and signatures are not verified. What a member reads is counted at a local chain
(`benchmarks.solana_reading`). How long a round takes on a cluster is arithmetic, which `on_a_cluster` does.
"""

from __future__ import annotations

import gc
import json
import math
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio

from benchmarks.growth.curves import Curve, curve
from benchmarks.memory import resident
from benchmarks.solana_reading import epoch_reads, small_reads
from benchmarks.solana_rounds import PlayedRun, Sent
from plugins.backend_solana.tests.svm.coordinator_svm import slot_hash
from psyche_backend_solana.following import account_slices
from psyche_backend_solana.following.account_slices import HEAD, Copy
from psyche_backend_solana.layouts import address_record, authorizer
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES, INSTANCE_BYTES
from psyche_backend_solana.sending.compute_budget import DISTINCT, unit_limit

EPOCH_ROUNDS = 60
TIMED_ROUNDS, QUICK_TIMED_ROUNDS = 300, 10
"""Rounds of each number of members whose processor time is taken."""
FOLLOWED_ROUNDS, QUICK_FOLLOWED_ROUNDS = 20, 3
"""Rounds in which each transaction is compared with the coordinator in Python, and followed as a client does."""
READ_ROUNDS = 3
LONGEST_SECONDS = 300.0
"""The rounds over which memory is observed end after so many seconds, if they are not done."""
ADDRESS = bytes(170)
"""A transport address of usual length."""

SLOT_SECONDS = 0.4
ACCOUNT_UNITS = 12_000_000
"""Units that a block may spend on transactions that write one account: the lower of the limits that clusters have had."""
FIXED_UNITS = 17_704
"""What a transaction takes of these beside the limit that it asks for: 16,384 for the accounts that it may load, 720 for a
signature, 300 for each of two accounts that it writes."""

Figures = dict[str, Any]


def measure(counts: Sequence[int], rounds: int, *, say: Callable[[str], None], quick: bool = False) -> Figures:
    """Figures of each number of members; `lasting`: of the largest number, by number of rounds, up to `rounds`."""
    members = {}
    for count in counts:
        say(f"chain: {count} members")
        members[str(count)] = _of_members(count, quick=quick)
    say(f"chain: up to {rounds} rounds of {max(counts)} members")
    small = anyio.run(small_reads)
    return {"members": members, **small, "rent": _rent(), "lasting": _apart(max(counts), rounds)}


def curves(found: Figures) -> list[Curve]:
    """Each cost over the number of members, and memory over rounds."""
    members = found["members"]

    def over_members(title: str, unit: str, cost: Callable[[Figures], float]) -> Curve:
        return curve(title, unit, "members", [(int(count), cost(figures)) for count, figures in members.items()])

    kinds = sorted({kind for figures in members.values() for kind in figures["kinds"]})
    lasting = [(int(played), figures) for played, figures in found["lasting"].items()]
    return [
        *(over_members(f"{_words(kind)}, median", "units", _units(kind, "units_p50")) for kind in kinds),
        *(over_members(f"{_words(kind)}, largest", "units", _units(kind, "units_max")) for kind in kinds),
        over_members("all of a round", "units", lambda f: f["round"]["units"]),
        over_members("transactions of a round", "transactions", lambda f: f["round"]["transactions"]),
        over_members("transactions of an epoch beside rounds", "transactions", lambda f: f["beside"]["transactions"]),
        over_members("fees of a round, all", "lamports", lambda f: f["round"]["lamports"]),
        over_members("fees of a round, a member's mean", "lamports", lambda f: f["round"]["member_lamports"]),
        over_members("all transactions of a round", "bytes", lambda f: f["round"]["bytes"]),
        over_members("a member reads of a round", "bytes", lambda f: f["reads"]["round_bytes"]),
        over_members("a member reads of an epoch", "bytes", lambda f: f["reads"]["epoch_bytes"]),
        over_members("SVM of a round, median", "CPU ms", lambda f: f["svm_round_p50_ms"]),
        over_members("SVM of a round, 99 %", "CPU ms", lambda f: f["svm_round_p99_ms"]),
        over_members("a client decodes an account", "CPU ms", lambda f: f["client"]["decode_p50_ms"]),
        over_members("a client follows a round", "CPU ms", lambda f: f["client"]["round_p50_ms"]),
        curve("memory", "MB", "rounds", [(played, figures["rss_mb"]) for played, figures in lasting]),
        curve("size of the account", "bytes", "rounds", [(played, figures["account_bytes"]) for played, figures in lasting]),
    ]


def _words(command: str) -> str:
    """A command's name as words: "WarmupWitness" is "warmup witness"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", command).lower()


def on_a_cluster(units: Sequence[int]) -> Figures:
    """Arithmetic: when so many transactions, sent at once, are seen by all. units: that each of them uses.

    blocks: that have room for them. seconds_1, seconds_2: until they are in blocks, and one or two more slots have passed.
    """
    wanted = sum(unit_limit(used, distinct=DISTINCT // 2) + FIXED_UNITS for used in units)
    blocks = math.ceil(wanted / ACCOUNT_UNITS)
    return {
        "block_units": wanted,
        "blocks": blocks,
        **{f"seconds_{more}": round((blocks + more) * SLOT_SECONDS, 1) for more in (1, 2)},
    }


def _units(kind: str, name: str) -> Callable[[Figures], float]:
    return lambda figures: figures["kinds"][kind][name]


def _of_members(count: int, *, quick: bool) -> Figures:
    followed = QUICK_FOLLOWED_ROUNDS if quick else FOLLOWED_ROUNDS
    run = PlayedRun(count, rounds=followed + 1)
    joins, beginning = run.gather(), run.warm_up()
    first = run.play_round()
    follower = _Follower(run)
    with _uncollected():
        rounds = [follower.play_round() for _ in range(followed)]
    drain = run.play_round()
    beside = [*beginning, *run.end_epoch()]
    middle = [each for sent in rounds for each in sent]
    reads = anyio.run(_reads, count)
    return {
        "kinds": _kinds([*joins, *beside, *first, *middle, *drain]),
        "round": _total(middle, rounds=len(rounds), members=count),
        "beside": _total(beside, rounds=1, members=count),
        "reads": reads,
        "client": follower.figures(),
        **_svm_times(count, QUICK_TIMED_ROUNDS if quick else TIMED_ROUNDS),
        "arithmetic": {
            "joins": on_a_cluster([each.units for each in joins]),
            "warmup": on_a_cluster([each.units for each in beginning]),
            "round": on_a_cluster([each.units for each in rounds[-1]]),
        },
    }


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage: the objects of the SVM and of the other parts' libraries would be searched in a client's time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _kinds(sent: Sequence[Sent]) -> Figures:
    kinds: dict[str, list[Sent]] = defaultdict(list)
    for each in sent:
        kinds[each.kind].append(each)
    return {
        kind: {
            "sent": len(found),
            "units_p50": _at(0.5, [each.units for each in found]),
            "units_max": max(each.units for each in found),
            "bytes": max(each.size for each in found),
            "lamports": max(each.lamports for each in found),
        }
        for kind, found in sorted(kinds.items())
    }


def _total(sent: Sequence[Sent], *, rounds: int, members: int) -> Figures:
    """Of a round, in the mean. member_: a member's share of it, in the mean."""
    lamports = sum(each.lamports for each in sent) / rounds
    return {
        "transactions": len(sent) / rounds,
        "bytes": sum(each.size for each in sent) / rounds,
        "units": sum(each.units for each in sent) / rounds,
        "lamports": lamports,
        "member_transactions": len(sent) / rounds / members,
        "member_lamports": lamports / members,
    }


def _svm_times(count: int, timed: int) -> Figures:
    """Milliseconds of processor time in which the SVM executes the transactions of a round."""
    run = PlayedRun(count, rounds=timed, checked=False)
    run.gather()
    run.warm_up()
    run.play_round()
    spent = [1e3 * sum(each.seconds for each in run.play_round()) for _ in range(timed - 1)]
    return {
        "svm_rounds": len(spent),
        "svm_round_p50_ms": round(_at(0.5, spent), 2),
        "svm_round_p99_ms": round(_at(0.99, spent), 2),
        "svm_round_max_ms": round(max(spent), 2),
    }


async def _reads(count: int) -> Figures:
    reads = await epoch_reads(READ_ROUNDS, clients=count)
    epoch_bytes, epoch_requests, changes = reads.epoch(EPOCH_ROUNDS)
    round_bytes, requests, round_changes = (part / reads.count for part in reads.rounds)
    return {
        "round_bytes": round(round_bytes),
        "round_requests": round(requests, 1),
        "round_changes": round(round_changes, 1),
        "epoch_bytes": epoch_bytes,
        "epoch_requests": epoch_requests,
        "epoch_changes": changes,
        "whole_bytes": reads.whole,
    }


class _Follower:
    """What a client computes when it has read the bytes of each change of a round."""

    def __init__(self, run: PlayedRun) -> None:
        self._run = run
        self._decodes: list[float] = []
        self._additions: list[float] = []
        self._rounds: list[float] = []

    def play_round(self) -> list[Sent]:
        """Play one, and follow it. A round's last statement is not an addition; the account is decoded then."""
        run, sent, spent = self._run, [], 0.0
        run.begin_round()
        copy = self._decoded(run.chain.data())
        for command in list(run.statements()):
            sent.append(run.do(command))
            data = run.chain.data()
            assert copy.state is not None
            where = account_slices.additions(copy.state, 1)
            assert where is not None
            began = time.thread_time()
            found = account_slices.added(copy, data[: HEAD.end], where, data[where.start : where.end], now=run.now)
            added = time.thread_time() - began
            spent += added
            if found is None:
                began = time.thread_time()
                copy = Copy.of(data, earlier=copy)
                spent += time.thread_time() - began
            else:
                self._additions.append(added)
                copy = found
            if copy.state != run.state:
                message = "a client follows another run"
                raise AssertionError(message)
        self._rounds.append(spent)
        return sent

    def figures(self) -> Figures:
        """Processor time in milliseconds."""
        return {
            "decode_p50_ms": round(1e3 * _at(0.5, self._decodes), 3),
            "addition_p50_ms": round(1e3 * _at(0.5, self._additions), 3),
            "addition_p99_ms": round(1e3 * _at(0.99, self._additions), 3),
            "addition_max_ms": round(1e3 * max(self._additions), 3),
            "round_p50_ms": round(1e3 * _at(0.5, self._rounds), 2),
        }

    def _decoded(self, data: bytes) -> Copy:
        began = time.thread_time()
        found = Copy.of(data)
        self._decodes.append(time.thread_time() - began)
        return found


def _rent() -> Figures:
    """Lamports that are held: by both accounts of the run while it exists, and by a member's account with its address."""
    svm = PlayedRun(1, rounds=1).chain.svm
    address = authorizer.BYTES + 32 * len(address_record.delegates(bytes(32), ADDRESS))
    return {
        "run_lamports": sum(svm.minimum_balance_for_rent_exemption(size) for size in (ACCOUNT_BYTES, INSTANCE_BYTES)),
        "member_lamports": svm.minimum_balance_for_rent_exemption(address),
    }


def _apart(count: int, rounds: int) -> Figures:
    """`lasting` in a process of its own, whose memory is not that of the other parts' libraries."""
    code = f"import json; from benchmarks.growth import chain; print(json.dumps(chain.lasting({count}, {rounds})))"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    found: Figures = json.loads(done.stdout)
    return found


def lasting(count: int, rounds: int) -> Figures:
    """Of this process, which has the SVM in it, after a tenth of the rounds, two tenths and so on; epochs of EPOCH_ROUNDS."""
    run = PlayedRun(count, rounds=EPOCH_ROUNDS, checked=False)
    run.gather()
    found: Figures = {}
    began, played, epochs = time.monotonic(), 0, 0
    while played < rounds and time.monotonic() - began < LONGEST_SECONDS:
        run.warm_up()
        while run.in_rounds:
            run.play_round()
            slot_hash.cache_clear()  # the clock of this benchmark remembers every slot; a chain does not
            played += 1
            if played % max(rounds // 10, 1) == 0:
                account = run.chain.svm.get_account(run.chain.run.account)
                assert account is not None
                found[str(played)] = {
                    "rss_mb": round(resident() / 1e6, 1),
                    "account_bytes": len(account.data),
                    "account_lamports": account.lamports,
                    "epochs": epochs,
                    "seconds": round(time.monotonic() - began, 1),
                }
        run.end_epoch()
        epochs += 1
    return found


def _at(share: float, values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
