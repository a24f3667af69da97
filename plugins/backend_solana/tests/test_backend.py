"""The backend beyond the contract: outages, deaf sockets, turns at ticking, authorizations, runs that are not there."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from command_lines import parse
from model_chain_rpc import open_chain
from model_runs import OWNER, QUICK, TIMEOUT, backend_of, make_run, wallet_of

from plugins.backend_solana.tests.backend_parts import KEYS, pending
from psyche_backend_solana.backend import PollIntervals, SolanaBackend
from psyche_backend_solana.following import watcher
from psyche_backend_solana.following.address_book import AddressBook
from psyche_backend_solana.layouts import authorizer
from psyche_backend_solana.layouts import coordinator as program
from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.rpc.client import Rpc, RpcUnavailable
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_backend_solana.sending.sender import Sender
from psyche_backend_solana.settings import SolanaSettings
from psyche_core.coordinator.commands import WarmupWitness, Withdraw
from psyche_core.errors import BackendClosed, BackendError, CommandRefused
from psyche_core.hookspecs import BackendContext
from psyche_core.interfaces.backend import StateUpdate
from psyche_core.testing.backend import in_phase, small_state, until
from psyche_core.types import RunState

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def has_address(signer: bytes, address: bytes, update: StateUpdate) -> bool:
    return update.addresses.get(signer) == address


async def test_one_of_two_endpoints_dies_midway_and_nothing_is_lost() -> None:
    state = small_state()
    async with open_chain(unix=state.since, providers=2) as chain, AsyncExitStack() as stack:
        await make_run(chain, state)
        first, second = [await stack.enter_async_context(backend_of(chain, key)) for key in KEYS[:2]]
        await first.join(b"one", timeout=TIMEOUT)
        await until(second, pending(1))
        chain.providers[0].shut()
        await second.join(b"two", timeout=TIMEOUT)
        await until(first, lambda update: len(update.addresses) == 2)
        chain.unix += 3
        for slot, backend in enumerate((first, second)):
            await until(backend, in_phase(RunState.Warmup))
            await backend.send(WarmupWitness(backend.identity, 0, slot, b"d" * 32), timeout=TIMEOUT)
        for backend in (first, second):
            await until(backend, in_phase(RunState.RoundTrain))
        assert not chain.providers[0].is_open


async def test_a_client_says_that_its_run_asks_for_another_version(caplog: pytest.LogCaptureFixture) -> None:
    """Each time its owner changes it, and takes part; an image is nothing it could compare itself with."""
    state = small_state()
    async with open_chain(unix=state.since) as chain:
        run = await make_run(chain, state)
        async with Rpc([chain.providers[0].endpoint]) as rpc, backend_of(chain, KEYS[0]) as backend:
            owner = Sender(rpc, OWNER)
            for count, text in enumerate(["v98.1.0", "98.1", "ghcr.io/owner/name:tag", "", version("psyche-core"), "99.0rc1"]):
                change = program.update(run, program.Update(client_version=text), authority=OWNER.pubkey)
                await owner.send(change, timeout=TIMEOUT)
                await backend.join(bytes([count + 1]), timeout=TIMEOUT)
                await until(backend, partial(has_address, backend.identity.signer, bytes([count + 1])))
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING" and "asks for" in record.msg]
    assert [sentence.split(" of the client")[0] for sentence in said] == [
        "the run asks for version 98.1",
        "the run asks for version 98.1",
        "the run asks for version 99.0rc1",
    ]
    assert all("run-manager" in sentence for sentence in said)


async def test_an_endpoint_that_only_lags_gives_no_older_state() -> None:
    """The second provider serves what was there at the start; what was seen never goes back."""
    state = small_state(clients=3)
    async with open_chain(unix=state.since, providers=2) as chain:
        run = await make_run(chain, state)
        stale = chain.accounts[run.account]
        async with backend_of(chain, KEYS[0]) as backend:
            await backend.join(b"a", timeout=TIMEOUT)
            await until(backend, pending(1))
            chain.providers[0].shut()
            chain.accounts[run.account], newest = stale, chain.accounts[run.account]
            # Updates may still come, the address for instance, or the clock; none may have the older state.
            with anyio.move_on_after(0.5):
                while True:
                    assert len((await backend.next_state()).state.pending) == 1
            chain.accounts[run.account] = newest
            async with backend_of(chain, KEYS[1]) as other:
                await other.join(b"b", timeout=TIMEOUT)
            await until(backend, pending(2))


async def test_a_deaf_websocket_is_noticed_and_polling_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "DEAF_SECONDS", 0.1)
    state = small_state()
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state)
        async with backend_of(chain, KEYS[0]) as backend, backend_of(chain, KEYS[1]) as other:
            await until(backend, pending(0))
            chain.providers[0].mute = True
            await other.join(b"b", timeout=TIMEOUT)
            await until(backend, pending(1))
            chain.providers[0].mute = False
            await backend.join(b"a", timeout=TIMEOUT)
            await until(other, pending(2))


async def test_without_any_websocket_everything_is_polled() -> None:
    state = small_state()
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state)
        (provider,) = chain.providers
        provider.endpoint = Endpoint(provider.endpoint.http, "ws://127.0.0.1:9")
        async with backend_of(chain, KEYS[0]) as backend, backend_of(chain, KEYS[1]) as other:
            await other.join(b"b", timeout=TIMEOUT)
            await until(backend, pending(1))


async def test_an_outage_of_all_is_waited_for() -> None:
    state = small_state()
    async with open_chain(unix=state.since) as chain, anyio.create_task_group() as group:
        await make_run(chain, state)
        (provider,) = chain.providers
        async with backend_of(chain, KEYS[0], retry_seconds=30) as backend:
            await until(backend, pending(0))
            provider.shut()
            with pytest.raises(TimeoutError):
                await backend.join(b"a", timeout=0.3)
            while provider.is_open:  # the sockets close by themselves
                await anyio.sleep(0.01)
            await group.start(provider.run)
            await backend.join(b"a", timeout=TIMEOUT)
            await until(backend, pending(1))
        group.cancel_scope.cancel()


async def test_an_outage_without_end_closes_the_backend() -> None:
    state = small_state()
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state)
        async with backend_of(chain, KEYS[0], retry_seconds=0.5) as backend:
            await until(backend, pending(0))
            chain.providers[0].shut()
            with pytest.raises(BackendClosed, match="could not be read for"), anyio.fail_after(30):
                await until(backend, lambda update: False)


async def test_a_closed_run_closes_the_backend() -> None:
    state = small_state()
    async with open_chain(unix=state.since) as chain, Rpc([chain.providers[0].endpoint]) as rpc:
        run = await make_run(chain, state)
        async with backend_of(chain, KEYS[0]) as backend:
            await until(backend, pending(0))
            owner = Sender(rpc, OWNER)
            await owner.send(program.set_paused(run, authority=OWNER.pubkey, paused=True), timeout=TIMEOUT)
            await owner.send(program.free(run, authority=OWNER.pubkey, spill=OWNER.pubkey), timeout=TIMEOUT)
            with pytest.raises(BackendClosed, match="closed the run"), anyio.fail_after(TIMEOUT):
                await until(backend, lambda update: False)


async def test_a_run_that_is_not_there() -> None:
    async with open_chain(unix=1) as chain:
        with pytest.raises(CommandRefused, match=r"WrongRun: there is no run 'nowhere' .*list-runs"):
            async with backend_of(chain, KEYS[0], run_id="nowhere"):
                pass


async def test_a_dead_chain_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_chain(unix=1) as chain:
        chain.providers[0].shut()
        monkeypatch.setattr("psyche_backend_solana.backend.FIND_SECONDS", 0.3)
        backend = backend_of(chain, KEYS[0])
        with pytest.raises(BackendError, match="no RPC endpoint answered"), anyio.fail_after(30):
            async with backend:
                pass


async def test_without_an_authorization_joining_is_refused_with_what_is_missing() -> None:
    state = small_state()
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state, members=[])
        async with backend_of(chain, KEYS[0]) as backend:
            with pytest.raises(CommandRefused, match=r"NotAuthorized: .*none for everybody, none for .*authorization-create"):
                await backend.join(b"a", timeout=TIMEOUT)


async def test_ones_own_authorization_lets_one_in_and_nobody_else() -> None:
    state = small_state()
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state, members=[wallet_of(KEYS[0]).pubkey])
        async with backend_of(chain, KEYS[0]) as backend, backend_of(chain, KEYS[1]) as other:
            await backend.join(b"a", timeout=TIMEOUT)
            with pytest.raises(CommandRefused, match="NotAuthorized"):
                await other.join(b"b", timeout=TIMEOUT)


async def test_a_delegate_joins_with_its_masters_authorization() -> None:
    state = small_state()
    master, delegate = wallet_of(KEYS[0]), wallet_of(KEYS[1])
    async with open_chain(unix=state.since) as chain, Rpc([chain.providers[0].endpoint]) as rpc:
        await make_run(chain, state, members=[master.pubkey])
        chain.fund(master.pubkey)
        at = authorizer.address(OWNER.pubkey, master.pubkey)
        async with backend_of(chain, KEYS[1], grantees=(master.pubkey,)) as backend:
            with pytest.raises(CommandRefused, match="does not name this wallet"):
                await backend.join(b"a", timeout=TIMEOUT)
            named = authorizer.grantee_update(master.pubkey, master.pubkey, authorization=at, add=[delegate.pubkey])
            await Sender(rpc, master).send(named, timeout=TIMEOUT)
            await backend.join(b"a", timeout=TIMEOUT)
            await until(backend, pending(1))


async def test_joining_again_unchanged_costs_nothing() -> None:
    state = small_state()
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state)
        async with backend_of(chain, KEYS[0]) as backend:
            await backend.join(b"a", timeout=TIMEOUT)
            await until(backend, pending(1))
            landed = len(chain.landed)
            await backend.join(b"a", timeout=TIMEOUT)
            assert len(chain.landed) == landed
            await backend.join(b"b", timeout=TIMEOUT)
            assert len(chain.landed) == landed + 2  # the address, and a join that tells the others


async def test_the_documented_commands_can_be_typed() -> None:
    """Every `psyche` line of the README is one the program knows."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    lines = [line.strip() for line in readme.splitlines() if line.startswith("    psyche ")]
    assert len(lines) > 6
    for line in lines:
        words = shlex.split(line.removesuffix(" &"))[1:]
        address = str(OWNER.pubkey)
        parse([address if word == "ADDRESS" else word for word in words])


async def test_an_authorization_that_comes_late_is_waited_for() -> None:
    state = small_state()
    patient = PollIntervals(tick=QUICK.tick, addresses=1.0, authorization=30.0, watcher=QUICK.watcher)
    async with (
        open_chain(unix=state.since) as chain,
        Rpc([chain.providers[0].endpoint]) as rpc,
        anyio.create_task_group() as group,
    ):
        await make_run(chain, state, members=[])
        async with backend_of(chain, KEYS[0], intervals=patient) as backend:
            await until(backend, pending(0))

            async def grant() -> None:
                grantee = wallet_of(KEYS[0]).pubkey
                made = authorizer.create(OWNER.pubkey, OWNER.pubkey, grantee=grantee)
                active = authorizer.grantor_update(OWNER.pubkey, authorizer.address(OWNER.pubkey, grantee), active=True)
                await anyio.sleep(0.5)  # after the first look
                await Sender(rpc, OWNER).send(made, active, timeout=TIMEOUT)

            group.start_soon(grant)
            await backend.join(b"a", timeout=TIMEOUT)
            await until(backend, pending(1))


async def test_who_has_no_authorization_hears_so_before_its_caller_gives_up() -> None:
    """Whoever joins tries again after a timeout, so it would never learn why."""
    state = small_state()
    patient = PollIntervals(tick=QUICK.tick, addresses=1.0, authorization=5.0, watcher=QUICK.watcher)
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state, members=[])
        async with backend_of(chain, KEYS[0], intervals=patient) as backend:
            await until(backend, pending(0))
            with pytest.raises(CommandRefused, match="NotAuthorized"):
                await backend.join(b"a", timeout=5.0)


async def test_an_empty_wallet_hears_why_it_cannot_join() -> None:
    state = small_state()
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state)
        async with backend_of(chain, KEYS[0]) as backend:
            del chain.accounts[wallet_of(KEYS[0]).pubkey]
            with pytest.raises(CommandRefused, match="NotSent: the wallet cannot pay"):
                await backend.join(b"a", timeout=TIMEOUT)


async def test_an_observer_follows_a_run_without_a_wallet_and_pays_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyche_backend_solana.sending.ticker.FIRST_TURN_SECONDS", 0.05)
    state = small_state()
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state)
        endpoint = chain.providers[0].endpoint
        settings = SolanaSettings(rpc=endpoint.http, ws_rpc=endpoint.websocket)
        context = BackendContext(run_id="conformance", address="", key=KEYS[1], settings=settings)
        async with SolanaBackend.from_context(context, only_reads=True) as observer, backend_of(chain, KEYS[0]) as member:
            await member.join(b"here", timeout=TIMEOUT)
            await until(
                observer, lambda update: bool(pending(1)(update) and has_address(member.identity.signer, b"here", update))
            )
            landed = len(chain.landed)
            await member.send(Withdraw(member.identity), timeout=TIMEOUT)
            await until(observer, pending(0))
            assert len(chain.landed) == landed + 1
            with pytest.raises(CommandRefused, match="NotSent: the wallet cannot pay"):
                await observer.join(b"there", timeout=TIMEOUT)


async def test_the_web_page_follows_a_run_on_the_chain_without_a_wallet(tmp_path: Path) -> None:
    """`psyche web --backend solana` as a process of its own: a member that joins appears on the page."""
    state = small_state()
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state)
        endpoint = chain.providers[0].endpoint
        words = ["web", "--backend", "solana", "--run-id", "conformance", "--web-port", "0"]
        command = [sys.executable, "-m", "psyche_core", *words, "--rpc", endpoint.http, "--ws-rpc", endpoint.websocket]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PSYCHE_")}
        process = await anyio.open_process(command, env=environment | {"HOME": str(tmp_path)}, cwd=tmp_path)
        try:
            with anyio.fail_after(60):
                assert process.stderr is not None
                said = ""
                while "\n" not in said:
                    said += (await process.stderr.receive()).decode()
                page = said.split()[-1]
                before = len(chain.landed)
                async with backend_of(chain, KEYS[0]) as member, httpx.AsyncClient(base_url=page) as http:
                    await member.join(b"here", timeout=TIMEOUT)
                    while (run := (await http.get("api/runs")).json()["runs"][0])["clients"] != 1:
                        await anyio.sleep(0.05)
            assert (run["run_id"], run["phase"]) == ("conformance", "WaitingForMembers")
            payers = {landed.keys[0] for landed in chain.landed[before:]}
            assert payers == {wallet_of(KEYS[0]).pubkey}, "the page sends nothing"
        finally:
            process.kill()
            await process.wait()


async def test_an_account_that_cannot_be_read_any_more_closes_the_backend_with_the_reason() -> None:
    state = small_state()
    async with open_chain(unix=state.since) as chain:
        run = await make_run(chain, state)
        async with backend_of(chain, KEYS[0], retry_seconds=0.5) as backend:
            await until(backend, pending(0))
            kept = chain.accounts[run.account]
            newer = kept.data[:16] + b"\xff" + kept.data[17:1344] + b"nonsense" + kept.data[1352:]
            chain.accounts[run.account] = type(kept)(kept.lamports, kept.owner, newer)
            with pytest.raises(BackendClosed, match="could not be read"), anyio.fail_after(30):
                await until(backend, lambda update: False)


async def test_what_one_failed_call_did_not_bring_costs_nothing_that_others_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyche_backend_solana.following.address_book.AT_ONCE", 1)
    state = small_state()
    async with open_chain(unix=state.since) as chain, Rpc([chain.providers[0].endpoint]) as rpc:
        run = await make_run(chain, state)
        async with backend_of(chain, KEYS[0]) as one, backend_of(chain, KEYS[1]) as two:
            await one.join(b"a", timeout=TIMEOUT)
            await two.join(b"b", timeout=TIMEOUT)
            identities = one.identity, two.identity
        book = AddressBook(rpc, run, program=Programs().authorizer)
        members = sorted(identities, key=lambda member: member.signer)
        original, failing = methods.accounts, [False, True]

        async def sometimes(*parameters: Any, **options: Any) -> Any:
            if failing.pop(0):
                raise RpcUnavailable("no RPC endpoint answered")
            return await original(*parameters, **options)

        monkeypatch.setattr(methods, "accounts", sometimes)
        assert await book.read(members)
        assert book.missing(members) == (members[1],)
        failing.append(True)
        with pytest.raises(RpcUnavailable):
            await book.read(members[1:])
        failing.append(False)
        assert await book.read(book.missing(members))
        assert [book.address(member) for member in identities] == [b"a", b"b"]
