"""Commands of a paid run's owner on a local chain: the account of an older release, and closing what many were slashed in."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner
from model_runs import all_programs
from solders.account import Account
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.commands.shell import said
from psyche_backend_solana.hooks import psyche_register_commands
from psyche_backend_solana.layouts import treasurer
from psyche_backend_solana.layouts.coordinator_accounts import (
    HEADER_BYTES,
)
from psyche_backend_solana.localnet.chain import LocalChain
from psyche_backend_solana.localnet.settings import ChainSettings
from psyche_backend_solana.programs.addresses import TOKEN
from psyche_backend_solana.wallet import Wallet
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.state import Account as Balance
from psyche_core.testing.backend import small_state
from psyche_core.types import RunState

pytestmark = pytest.mark.anyio
RUN_MANAGER, _ = psyche_register_commands()
START = 1_700_000_000
RUN = "paid"
TREASURER_RUN = treasurer.run_address(int.from_bytes(hashlib.sha256(RUN.encode()).digest()[:8], "little"))


class Office:
    """A run with a treasurer, and its owner at a shell."""

    def __init__(self, folder: Path, chain: LocalChain) -> None:
        self.chain = chain
        self.owner = Wallet.generate()
        self._file = folder / "owner.json"
        self.owner.save(self._file)
        self.mint = Pubkey.new_unique()
        self.account = Pubkey.default()

    async def open(self) -> None:
        await self.chain.airdrop(str(self.owner.pubkey), 10**11)
        content = struct.pack("<I32sQBBI32s", 0, bytes(32), 0, 6, 1, 0, bytes(32))
        await self.chain.set_account(str(self.mint), Account(10**9, content, TOKEN))
        made = await self.json("create-run", "--treasurer-collateral-mint", str(self.mint))
        self.account = Pubkey.from_string(made["account"])

    async def __call__(self, *words: str, code: int = 0) -> str:
        """What a command says; of a refusal the sentence."""
        runner = CliRunner(env={"PSYCHE_RPC": self.chain.rpc_url})
        command = [words[0], "-r", RUN, *words[1:], "-w", str(self._file)]
        result = await anyio.to_thread.run_sync(lambda: runner.invoke(RUN_MANAGER.load(), command))
        return said(result, code)

    async def json(self, *words: str) -> Any:
        return json.loads(await self(*words, "--json"))

    async def data(self) -> bytes:
        found = await self.chain.account(str(self.account))
        assert found is not None
        return bytes(found.data)

    async def put(self, data: bytes) -> None:
        """The coordinator's account, with the rent that its size needs."""
        found = await self.chain.account(str(self.account))
        assert found is not None
        lamports = found.lamports * (len(data) + 128) // (len(found.data) + 128)
        await self.chain.set_account(str(self.account), Account(lamports, data, found.owner))

    async def earn(self, points: Mapping[bytes, tuple[int, int]]) -> None:
        """A run that is over, with these points earned and slashed."""
        accounts = tuple(Balance(signer, *amounts) for signer, amounts in sorted(points.items()))
        state = replace(small_state(run_id=RUN), accounts=accounts, run_state=RunState.Finished)
        data = await self.data()
        await self.put(data[:HEADER_BYTES] + image.encode(state) + data[HEADER_BYTES + image.SIZE :])

    async def paid(self, user: bytes, amount: int) -> None:
        """As a claim of the only one who was ever paid leaves it, but for the tokens."""
        found = await self.chain.account(str(TREASURER_RUN))
        assert found is not None
        data = bytes(found.data)
        changed = data[:184] + struct.pack("<QQ", amount, 1) + data[200:]
        await self.chain.set_account(str(TREASURER_RUN), Account(found.lamports, changed, found.owner))
        at = treasurer.participant_address(TREASURER_RUN, Pubkey(user))
        fields = (b"PsychePa", 1, 255, bytes(TREASURER_RUN), user, amount, int.from_bytes(data[200:208], "little"))
        await self.chain.set_account(str(at), Account(10**9, struct.pack("<8sIB3x32s32sQQ32x", *fields), found.owner))

    async def treasurer_run(self) -> treasurer.Run | None:
        found = await self.chain.account(str(TREASURER_RUN))
        return treasurer.parse_run(found) if found is not None and found.lamports else None


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    settings = ChainSettings(manual_clock=True, start_time=START, programs=all_programs())
    async with LocalChain(settings) as chain:
        made = Office(tmp_path, chain)
        await made.open()
        yield made


async def test_a_run_with_many_slashed_members_is_closed(office: Office) -> None:
    """More than a transaction shows, of whom one was paid before it was slashed and the others have no account yet."""
    await office.chain.advance(1)
    slashed = {hashlib.sha256(bytes([number])).digest(): (10, 10 + number) for number in range(45)}
    owed = hashlib.sha256(b"owed").digest()
    await office.earn({**slashed, owed: (7, 0)})
    assert "7 units are still owed" in await office("close-run", code=2)
    found = await office.treasurer_run()
    assert found is not None
    assert (found.participants, found.forgiven) == (0, 0), "nothing was sent"
    await office.paid(next(iter(slashed)), 4)
    await office.earn(slashed)
    assert (await office("close-run")).startswith(f"the run {RUN!r} is closed; ")
    assert await office.treasurer_run() is None
