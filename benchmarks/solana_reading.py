"""What a member on Solana reads: to follow a run of 256, and to find everybody's address among the transactions of a stranger.

    python -m benchmarks.solana_reading [--rounds 4] [--members 64] [--spam 5000] [--json]

Both are measured at the HTTP port of a local chain, in bytes of answers' bodies, as JSON has them.

What is measured:
    read_bytes_per_member_epoch   of an epoch with 60 rounds, 256 clients and 32 witnesses, each instruction read by itself:
                                  warmup, first round, last round and cooldown are played, and `--rounds` rounds between
                                  them, which stand for the others
    whole_bytes_per_member_epoch  the same if each change were followed by a reading of the whole account
    read_requests_per_member_epoch, changes_per_epoch   questions asked for it, and instructions there were
    newcomer                      a run of `--members` members, after which a stranger names the run and its members in `--spam`
                                  transactions, at a provider that drops 2 % of all requests: how many addresses are found, in
                                  how many requests, bytes and seconds
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from dataclasses import dataclass, replace
from typing import Any

import anyio
import httpx2
from solders.account import Account
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import Transaction

from plugins.backend_solana.tests.svm.coordinator_svm import member, transport_key, wallet
from plugins.backend_solana.tests.svm.largest import NOW, Largest
from psyche_backend_solana.backend import SolanaBackend
from psyche_backend_solana.following.account_reader import Follower
from psyche_backend_solana.following.address_book import AddressBook
from psyche_backend_solana.following.subscription import Subscription
from psyche_backend_solana.following.watcher import Watcher
from psyche_backend_solana.hosting.new_run import make_run
from psyche_backend_solana.layouts.coordinator import Run
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES, ACCOUNT_MAGIC, ACCOUNT_VERSION, HEADER_BYTES
from psyche_backend_solana.localnet import LAMPORTS_PER_SOL, ChainSettings, LocalChain
from psyche_backend_solana.lookup.runs import find_run
from psyche_backend_solana.programs.addresses import COORDINATOR
from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc.client import Rpc, RpcUnavailable
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_backend_solana.sending.sender import Sender
from psyche_backend_solana.wallet import Wallet
from psyche_core.coordinator import apply, commands
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.state import CoordinatorState, Epoch
from psyche_core.testing.backend import small_state
from psyche_core.types import MAX_CLIENTS, NodeIdentity, RunState

ROUNDS = 60
CALL_SECONDS = 10.0
DROPPED = 0.02
PATIENCE_SECONDS = 120.0
_AT_ONCE = 16
_DIGEST = b"d" * 32


class Followed:
    """A run whose account is put on a local chain after each instruction, and read. rounds: of an epoch, drain round aside."""

    def __init__(self, chain: LocalChain, rpc: Rpc, rounds: int, *, clients: int = MAX_CLIENTS) -> None:
        self._chain = chain
        self._rpc = rpc
        self.run = Run(Pubkey(b"i" * 32), Pubkey(b"a" * 32))
        self._follower = Follower(rpc, self.run, call_seconds=CALL_SECONDS)
        self._largest = Largest(torn=False, percent=0, instance=bytes(self.run.account))
        state = self._largest.state
        counts = {"rounds_per_epoch": rounds, "init_min_clients": clients, "min_clients": min(clients, state.config.min_clients)}
        self.clients = clients
        self.state = replace(
            state,
            config=state.config.model_copy(update=counts),
            run_state=RunState.WaitingForMembers,
            epoch=Epoch(),
            pending=state.pending[:clients],
            accounts=state.accounts[:clients],
            since=NOW,
            minimum_since=NOW,
        )
        self._now = NOW
        self.changes = 0

    async def put(self) -> None:
        """The account as it is now."""
        header = (
            ACCOUNT_MAGIC
            + ACCOUNT_VERSION.to_bytes(4, "little")
            + bytes(4)
            + self.changes.to_bytes(8, "little")
            + bytes(self.run.instance)
        )
        body = header.ljust(HEADER_BYTES, b"\0") + image.encode(self.state)
        await self._chain.set_account(str(self.run.account), Account(10**10, body.ljust(ACCOUNT_BYTES, b"\0"), COORDINATOR))

    async def read(self) -> CoordinatorState | None:
        copy, _ = await self._follower.read(reported_nonce=self.changes)
        return copy.state

    async def do(self, command: commands.Command, *, seconds: int = 0) -> None:
        """One instruction, and what a member reads of it."""
        self._now += seconds
        self.state, _ = apply(self.state, command, self._now, self.changes)
        self.changes += 1
        await self.put()
        if await self.read() != self.state:
            message = f"{type(command).__name__} was not followed"
            raise AssertionError(message)

    async def play_round(self) -> None:
        """All statements of the current one; it is trained for a second."""
        current = self.state.epoch.rounds[-1]
        seen = list(shares(self.state, self.state.epoch.rounds[-2])) if current.height else []
        for number, slot in enumerate(witness_slots(self.state, current)):
            await self.do(commands.Witness(member(slot), self._largest.statement(slot, current, seen=seen)), seconds=not number)


@dataclass(frozen=True, slots=True)
class EpochReads:
    """What a member reads: bytes, requests and changes of the account.

    ends: of an epoch's warmup, first round, last round and cooldown. rounds: of `count` others. whole: bytes of all of it.
    """

    ends: tuple[int, int, int]
    rounds: tuple[int, int, int]
    count: int
    whole: int

    def epoch(self, rounds: int = ROUNDS) -> tuple[int, int, int]:
        """Bytes, requests and changes of an epoch of so many rounds."""
        pairs = zip(self.ends, self.rounds, strict=True)
        bytes_, requests, changes = (end + part * (rounds - 1) // self.count for end, part in pairs)
        return bytes_, requests, changes


async def epoch_reads(rounds: int, *, clients: int = MAX_CLIENTS) -> EpochReads:
    """Play an epoch at a local chain. rounds: between the first and the drain round."""
    settings = ChainSettings(manual_clock=True, start_time=NOW, programs={})
    async with LocalChain(settings) as chain, Rpc([Endpoint(chain.rpc_url, chain.ws_url)]) as rpc:
        run = Followed(chain, rpc, rounds + 1, clients=clients)
        await run.put()
        before = rpc.bytes_read
        await run.read()
        whole = rpc.bytes_read - before
        begun = _Counts(rpc, run)
        await run.do(commands.Tick(), seconds=10)
        for slot in range(clients):
            await run.do(commands.WarmupWitness(member(slot), run.state.progress.epoch, slot, _DIGEST))
        await run.play_round()
        middle = _Counts(rpc, run)
        for _ in range(rounds):
            await run.play_round()
        played = _Counts(rpc, run).since(middle)
        middle_done = _Counts(rpc, run)
        await run.play_round()
        for slot in range(clients):
            await run.do(commands.EpochDigest(member(slot), run.state.progress.epoch, slot, _DIGEST))
        await run.do(commands.Tick(), seconds=10)
        assert run.state.run_state is RunState.WaitingForMembers
        early, late = middle.since(begun), _Counts(rpc, run).since(middle_done)
        return EpochReads((early[0] + late[0], early[1] + late[1], early[2] + late[2]), played, rounds, whole)


async def small_reads() -> dict[str, int]:
    """Bytes of a websocket's notice of one change, and of the answer to one poll for a change that was not noticed."""
    sizes: list[int] = []
    heard = anyio.Event()

    class Counted(Subscription):
        def _receive(self, message: Any) -> None:
            sizes.append(len(message))
            super()._receive(message)
            heard.set()

    def forget(found: object) -> None:
        del found

    settings = ChainSettings(manual_clock=True, start_time=NOW, programs={})
    async with LocalChain(settings) as chain, Rpc([Endpoint(chain.rpc_url, chain.ws_url)]) as rpc:
        followed = Followed(chain, rpc, 1)
        await followed.put()
        listener = Counted(rpc.endpoints[0], followed.run.account, on_nonce=forget)
        async with anyio.create_task_group() as group:
            group.start_soon(listener.run)
            with anyio.fail_after(CALL_SECONDS):
                while not heard.is_set():  # a change is noticed once the subscription is there
                    followed.changes += 1
                    await followed.put()
                    with anyio.move_on_after(0.05):
                        await heard.wait()
            group.cancel_scope.cancel()
        before = rpc.bytes_read
        await Watcher(rpc, followed.run, on_reading=forget, on_clock=forget).read_clock()
        polled = rpc.bytes_read - before
    return {"notice_bytes": sizes[0], "poll_bytes": polled}


async def following(rounds: int) -> dict[str, int]:
    """The bytes of an epoch. rounds: between the first and the drain round."""
    reads = await epoch_reads(rounds)
    found, requests, changes = reads.epoch()
    return {
        "read_bytes_per_member_epoch": found,
        "whole_bytes_per_member_epoch": changes * reads.whole,
        "read_requests_per_member_epoch": requests,
        "changes_per_epoch": changes,
    }


class _Counts:
    def __init__(self, rpc: Rpc, run: Followed) -> None:
        self._counts = (rpc.bytes_read, rpc.requests, run.changes)

    def since(self, earlier: _Counts) -> tuple[int, int, int]:
        """Bytes, requests, changes."""
        bytes_, requests, changes = (now - then for now, then in zip(self._counts, earlier._counts, strict=True))
        return bytes_, requests, changes


async def joined(chain: LocalChain, run_id: str, number: int, limiter: anyio.CapacityLimiter) -> None:
    """A member that joins with an address."""
    async with limiter:
        await chain.airdrop(str(wallet(number).pubkey()), LAMPORTS_PER_SOL)
        endpoint = Endpoint(chain.rpc_url, chain.ws_url)
        async with SolanaBackend(
            run_id, endpoints=(endpoint,), wallet=Wallet(wallet(number)), key=transport_key(number)
        ) as backend:
            await backend.join(b"address %3d of two hundred bytes or so" % number * 5, timeout=60)


async def spammed(chain: LocalChain, run: Run, members: int, count: int) -> None:
    """A stranger's transactions that name the run and as many of its members as fit, straight to the chain's port."""
    payer = Keypair()
    await chain.airdrop(str(payer.pubkey()), 100 * LAMPORTS_PER_SOL)
    named = [run.instance, run.account, *(wallet(number).pubkey() for number in range(min(members, 20)))]
    async with httpx2.AsyncClient(timeout=30) as http:

        async def ask(method: str, *params: Any) -> Any:
            request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return (await http.post(chain.rpc_url, json=request)).json()["result"]

        for number in range(count):
            if number % 50 == 0:
                blockhash = Hash.from_string((await ask("getLatestBlockhash"))["value"]["blockhash"])
            pay = transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=payer.pubkey(), lamports=number))
            keys = [*pay.accounts, *(AccountMeta(key, False, False) for key in named)]
            message = Message.new_with_blockhash([Instruction(pay.program_id, bytes(pay.data), keys)], payer.pubkey(), blockhash)
            raw = bytes(Transaction([payer], message, blockhash))
            await ask("sendTransaction", base64.b64encode(raw).decode(), {"encoding": "base64", "skipPreflight": True})


async def newcomer(members: int, spam: int) -> dict[str, float]:
    """Who finds how many addresses."""
    async with LocalChain(ChainSettings(slot_ms=50)) as chain:
        owner = Wallet.generate()
        await chain.airdrop(str(owner.pubkey), 1000 * LAMPORTS_PER_SOL)
        state = small_state(clients=MAX_CLIENTS, run_id="spammed")
        async with Rpc([Endpoint(chain.rpc_url, chain.ws_url)]) as rpc:
            run, _ = await make_run(Sender(rpc, owner), rpc, state)
        limiter = anyio.CapacityLimiter(_AT_ONCE)
        async with anyio.create_task_group() as group:
            for number in range(members):
                group.start_soon(joined, chain, state.run_id, number, limiter)
        await spammed(chain, run, members, spam)
        chain.faults.set(drop_share=DROPPED)
        return await found_by_a_newcomer(chain, state.run_id, [member(number) for number in range(members)])


async def found_by_a_newcomer(chain: LocalChain, run_id: str, members: list[NodeIdentity]) -> dict[str, float]:
    async with Rpc([Endpoint(chain.rpc_url, chain.ws_url)]) as rpc:
        begun = anyio.current_time()
        run = (await find_run(rpc, run_id, programs=Programs())).run
        book = AddressBook(rpc, run, program=Programs().authorizer)
        while book.missing(members) and anyio.current_time() - begun < PATIENCE_SECONDS:
            try:
                await book.read(book.missing(members))
            except RpcUnavailable:
                await anyio.sleep(0.2)
        return {
            "members": len(members),
            "found": len(members) - len(book.missing(members)),
            "requests": rpc.requests,
            "bytes": rpc.bytes_read,
            "seconds": round(anyio.current_time() - begun, 2),
        }


def measure(rounds: int, members: int, spam: int) -> dict[str, Any]:
    """All of it."""
    return {**anyio.run(following, rounds), "newcomer": {"spam": spam, **anyio.run(newcomer, members, spam)}}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solana_reading", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=4, help="rounds to play in the middle of the epoch (4)")
    parser.add_argument("--members", type=int, default=64, help="members whose addresses are looked for (64)")
    parser.add_argument("--spam", type=int, default=5000, help="transactions of a stranger (5000)")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    figures = measure(options.rounds, options.members, options.spam)
    if options.json:
        print(json.dumps(figures))
        return 0

    for name, value in figures.items():
        print(f"{name:32} {value if isinstance(value, dict) else format(value, ',')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
