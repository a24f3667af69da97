"""The chain on disk: what is restored, what a killed process leaves, and files that are none."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from localnet_parts import MANUAL, START, Rpc, RpcFailure, funded, new_mint, paying, signed, token_account
from solders.account import Account
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_backend_solana.localnet import ChainSettings, Instant, Limits, LocalChain
from psyche_backend_solana.localnet.ledger.snapshot import restore, take_snapshot
from psyche_backend_solana.localnet.ledger.state_file import StateFile
from psyche_backend_solana.programs.addresses import AUTHORIZER
from psyche_core.errors import UserError
from psyche_core.wire.codec import encode


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_restored_chain_is_the_chain_that_was_saved(tmp_path: Path) -> None:
    settings = ChainSettings(manual_clock=True, start_time=START, state=tmp_path / "deep" / "chain")
    async with LocalChain(settings) as chain, Rpc(chain.rpc_url) as rpc:
        assert not chain.restored
        payer, mint, holder, own, closed = await funded(chain), Keypair(), Keypair(), Keypair(), Keypair()
        blockhash = await rpc.blockhash()
        await rpc.send(signed(new_mint(mint.pubkey(), payer, 6), blockhash, payer, mint))
        await rpc.send(signed(token_account(holder.pubkey(), mint.pubkey(), payer), blockhash, payer, holder))
        await chain.set_account(str(own.pubkey()), Account(10**9, bytes(range(256)), payer.pubkey(), False, 7))
        await chain.airdrop(str(closed.pubkey()), 10**9)
        await rpc.send(paying(closed, payer.pubkey(), 10**9 - 5000, blockhash))  # leaves nothing
        sent = paying(payer, own.pubkey(), 1_000_000, blockhash)
        await rpc.send(sent)
        failed = paying(payer, own.pubkey(), 10**18, blockhash)
        await rpc.send(failed, skipPreflight=True)
        await chain.advance_slots(20)
        addresses = [str(key.pubkey()) for key in (payer, mint, holder, own, closed)] + [str(AUTHORIZER)]
        before = [await chain.account(address) for address in addresses]
        history = [await rpc("getTransaction", str(one.signatures[0])) for one in (sent, failed)]
        genesis, count, now = await rpc("getGenesisHash"), await rpc("getTransactionCount"), await chain.now()
        latest = await rpc.blockhash()
        url = chain.rpc_url
    async with LocalChain(settings) as chain, Rpc(chain.rpc_url) as rpc:
        assert chain.restored
        assert chain.rpc_url != url
        assert [await chain.account(address) for address in addresses] == before
        assert before[4] is None
        assert [await rpc("getTransaction", str(one.signatures[0])) for one in (sent, failed)] == history
        assert (await rpc("getGenesisHash"), await rpc("getTransactionCount"), await chain.now()) == (genesis, count, now)
        assert await rpc.blockhash() == latest
        with pytest.raises(RpcFailure, match="already been processed"):
            await rpc.send(sent)
        await rpc.send(paying(payer, own.pubkey(), 3_000_000, blockhash))  # its blockhash is still good
        with pytest.raises(RpcFailure) as caught:  # the program runs
            await rpc.send(signed([Instruction(AUTHORIZER, b"\xff", [])], latest, payer))
        assert "Custom" in caught.value.data["err"]["InstructionError"][1], caught.value.data
        assert await chain.airdrop(str(own.pubkey()), 1) != await chain.airdrop(str(own.pubkey()), 1)
    async with LocalChain(replace(settings, reset=True)) as chain, Rpc(chain.rpc_url) as rpc:
        assert not chain.restored
        assert await rpc("getGenesisHash") != genesis
        assert await chain.account(str(payer.pubkey())) is None


async def test_a_snapshot_of_the_restored_is_the_snapshot() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc:
        payer = await funded(chain)
        for step in range(5):
            await rpc.send(paying(payer, Keypair().pubkey(), 10**6, await rpc.blockhash()))
            await chain.advance_slots(step + 1)
        plain = await chain._on_ledger(take_snapshot)
    again = take_snapshot(restore(plain, history=100))
    assert encode(again) == encode(plain)
    again["accounts"][0][1] += 1
    assert encode(again) != encode(plain)


async def test_a_chain_on_the_wall_clock_skips_what_it_missed(tmp_path: Path) -> None:
    settings = ChainSettings(state=tmp_path / "chain", slot_ms=1000, programs={})
    wall = [1_800_000_000.0]
    async with LocalChain(settings, wall=lambda: wall[0], steady=lambda: 0.0) as chain:
        assert await chain.now() == Instant(1, 1_800_000_000)
        await chain.advance_slots(9)
    wall[0] += 100
    async with LocalChain(settings, wall=lambda: wall[0], steady=lambda: 0.0) as chain:
        now = await chain.now()
        assert now.unix == 1_800_000_100
        assert 100 <= now.slot <= 102
    wall[0] -= 10_000  # the machine's clock went back: the chain's does not
    async with LocalChain(settings, wall=lambda: wall[0], steady=lambda: 0.0) as chain:
        assert await chain.now() == Instant(now.slot + 1, now.unix)


async def test_files_that_cannot_be_used_are_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chain"
    settings = replace(MANUAL, state=path)
    async with LocalChain(settings) as chain:
        await chain.airdrop(str(Keypair().pubkey()), 10**9)
    good = path.read_bytes()
    cases = {
        b"anything else": "not a saved chain",
        b"psyche localnet 2\n" + good[18:]: "another release",
        good[:-1]: "damaged",
        good[:200] + bytes([good[200] ^ 1]) + good[201:]: "damaged",
        b"": "not a saved chain",
    }
    for content, sentence in cases.items():
        path.write_bytes(content)
        with pytest.raises(UserError, match=sentence):
            async with LocalChain(settings):
                pass
        assert path.read_bytes() == content
    path.write_bytes(good)
    with pytest.raises(UserError, match="over 100 bytes"):
        async with LocalChain(replace(settings, limits=Limits(state_bytes=100))):
            pass
    shapes: list[dict[str, Any]] = [{}, {"unix": 1}, {"unix": "x", "genesis_hash": "", "accounts": []}]
    for shape in shapes:
        StateFile(path, max_bytes=10**6).save(shape)
        with pytest.raises(UserError, match="malformed"):
            async with LocalChain(settings):
                pass
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match="cannot read the chain's state"):
        async with LocalChain(settings):
            pass


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[tuple[Process, str]]:
    """The command in a process of its own, and its RPC URL."""
    program = "from psyche_backend_solana.localnet.program import localnet; localnet()"
    command = [sys.executable, "-c", program, "--rpc-port", "0", "--no-programs", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=None)
    try:
        assert process.stdout is not None
        lines = []
        while (line := (await process.stdout.readline()).decode()) and line != "ready\n":
            lines.append(line)
        yield process, lines[0].split()[1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # asyncio leaves it to the garbage collector


@pytest.mark.e2e
async def test_a_killed_process_goes_on_from_what_it_saved(tmp_path: Path) -> None:
    state = tmp_path / "chain"
    payer, early, late = Keypair(), Keypair().pubkey(), Keypair().pubkey()
    arguments = ["--state", str(state), "--airdrop", f"{payer.pubkey()}:5", "--allow-faults", "--slot-ms", "50"]
    async with asyncio.timeout(60):
        async with running(*arguments) as (process, url), Rpc(url) as rpc:
            assert await rpc.balance(payer.pubkey()) == 5 * 10**9
            await rpc.send(paying(payer, early, 1_000_000, await rpc.blockhash()))
            assert await rpc("psyche_saveState") is True
            await rpc.send(paying(payer, late, 2_000_000, await rpc.blockhash()))
            slot = await rpc("getSlot")
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        async with running(*arguments) as (process, url), Rpc(url) as rpc:
            assert await rpc.balance(early) == 1_000_000
            assert await rpc("getSlot") > slot  # no slot is seen twice, whatever was lost
            await rpc.send(paying(payer, late, 3_000_000, await rpc.blockhash()))
            os.kill(process.pid, signal.SIGTERM)
            assert await process.wait() == 128 + signal.SIGTERM
        async with running(*arguments) as (process, url), Rpc(url) as rpc:
            assert await rpc.balance(late) in (3_000_000, 5_000_000)  # stopped, it saved; a save may have come before the kill
            os.kill(process.pid, signal.SIGINT)
            assert await process.wait() == 128 + signal.SIGINT


async def test_changes_are_saved_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "chain"
    settings = replace(MANUAL, state=path, save_seconds=0.01)
    async with LocalChain(settings) as chain, asyncio.timeout(20):
        while not path.exists():
            await asyncio.sleep(0.01)
        first = path.read_bytes()
        await chain.set_account(str(Keypair().pubkey()), Account(5, b"", Pubkey.default()))
        while path.read_bytes() == first:
            await asyncio.sleep(0.01)
