from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.to_thread
import httpx2
import pytest
from solders.account import Account as ChainAccount
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_backend_solana.backend import PollIntervals, SolanaBackend
from psyche_backend_solana.following.watcher import WatcherIntervals
from psyche_backend_solana.hosting.local_run import LocalRun
from psyche_backend_solana.hosting.testnet_member import lose_route, member_options
from psyche_backend_solana.layouts import tokens, treasurer
from psyche_backend_solana.layouts.coordinator_accounts import HEADER_BYTES
from psyche_backend_solana.programs.addresses import AUTHORIZER
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_backend_solana.wallet import Wallet
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.commands import ClientsExited, Event, WarmupWitness
from psyche_core.coordinator.state import Account, Client, CoordinatorState, Epoch
from psyche_core.errors import BackendError, CommandRefused, UserError
from psyche_core.hookspecs import MemberContext, ServerContext
from psyche_core.state_events import lost
from psyche_core.testing.backend import small_state
from psyche_core.types import ClientState, NodeIdentity, RunState
from psyche_core.wire.signing import SecretKey

SECONDS = 60.0
QUICK = PollIntervals(tick=0.05, watcher=WatcherIntervals(calm=0.5, alert=0.05))


@asynccontextmanager
async def member(server: LocalRun, folder: Path) -> AsyncIterator[SolanaBackend]:
    """A member as a testnet makes one, joined."""
    folder.mkdir()
    key = SecretKey.generate()
    key.save(folder / "client.key")
    context = MemberContext(run_id=server.state.run_id, address=server.address, key_path=folder / "client.key")
    options = await anyio.to_thread.run_sync(member_options, context)
    options.remove("--own-chain")  # wherever it listens
    given = dict(zip(options[::2], options[1::2], strict=True))
    wallet = Wallet.load(Path(given["--wallet-private-key-path"]))
    endpoints = (Endpoint.parse(given["--rpc"]), Endpoint.parse(given["--rpc-2"]))
    async with SolanaBackend(server.state.run_id, endpoints=endpoints, wallet=wallet, key=key, intervals=QUICK) as backend:
        await backend.join(b"somewhere", timeout=SECONDS)
        yield backend


async def reached(backend: SolanaBackend, phase: RunState) -> CoordinatorState:
    while True:
        state = (await backend.next_state()).state
        if state.run_state is phase:
            return state


async def test_a_run_on_a_chain_that_listens_on_the_internet_is_found_by_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipped addresses of the programs are taken there without a word: nobody else deploys on a chain that is ours."""
    monkeypatch.setattr("psyche_backend_solana.lookup.cluster.is_near", lambda endpoint: False)
    context = ServerContext(state=small_state(), state_dir=tmp_path, key=SecretKey.generate())
    with anyio.fail_after(SECONDS):
        async with LocalRun(context) as server:
            assert server.state.run_state is RunState.WaitingForMembers


async def test_only_listed_wallets_join_a_run_of_a_list(tmp_path: Path) -> None:
    """A list of a later start closes a run that was open, and takes the right from those that only an earlier list had."""
    listed, stranger = SecretKey.generate(), SecretKey.generate()
    wallets = [Wallet(Keypair.from_seed(key.seed)) for key in (listed, stranger)]
    context = ServerContext(state=small_state(), state_dir=tmp_path, key=SecretKey.generate())

    async def join(server: LocalRun, key: SecretKey, wallet: Wallet) -> None:
        endpoints = (Endpoint.parse(server.address),)
        async with SolanaBackend(server.state.run_id, endpoints=endpoints, wallet=wallet, key=key, intervals=QUICK) as backend:
            await server._chain.airdrop(str(wallet.pubkey), 10**9)
            await backend.join(b"somewhere", timeout=SECONDS)

    with anyio.fail_after(SECONDS):
        async with LocalRun(context) as server:
            assert server.continued_from is None
        (tmp_path / "members").write_text(f"# mine\n{wallets[0].pubkey}  # one\n")
        async with LocalRun(replace(context, allow_list=tmp_path / "members")) as server:
            assert server.continued_from is not None
            await join(server, listed, wallets[0])
            with pytest.raises(CommandRefused, match="NotAuthorized"):
                await join(server, stranger, wallets[1])
            nonsense = ChainAccount(10**9, b"not an authorization", AUTHORIZER)  # as anybody can make one
            await server._chain.set_account(str(Keypair().pubkey()), nonsense)
        (tmp_path / "members").write_text(f"{wallets[1].pubkey}\n")
        async with LocalRun(replace(context, allow_list=tmp_path / "members")) as server:
            await join(server, stranger, wallets[1])
            with pytest.raises(CommandRefused, match="NotAuthorized"):
                await join(server, listed, wallets[0])
        (tmp_path / "members").write_text(f"{wallets[0].pubkey}\n")
        fresh = replace(context, state_dir=None, allow_list=tmp_path / "members")
        async with LocalRun(fresh) as server:
            await join(server, listed, wallets[0])
            with pytest.raises(CommandRefused, match="NotAuthorized"):
                await join(server, stranger, wallets[1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ab" * 32, "line 1: expected the address of a wallet"),
        ("1" * 32, "line 1: this address means everybody"),
        (None, "No such"),
    ],
)
async def test_a_list_that_is_none_is_told_before_the_chain_starts(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "members").write_text(text)
    with pytest.raises(UserError, match=said):
        async with LocalRun(ServerContext(state=small_state(), allow_list=tmp_path / "members")):
            pass


@pytest.mark.slow
async def test_a_hosted_run_goes_to_its_first_round_and_on_after_a_restart(tmp_path: Path) -> None:
    seen: list[RunState] = []

    def note(state: CoordinatorState, _events: tuple[Event, ...]) -> None:
        seen.append(state.run_state)

    context = ServerContext(state=small_state(), state_dir=tmp_path, key=SecretKey.generate(), on_event=note)
    with anyio.fail_after(SECONDS):
        async with LocalRun(context) as server, anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve)
            async with member(server, tmp_path / "a") as first, member(server, tmp_path / "b") as second:
                for backend in (first, second):
                    warmup = await reached(backend, RunState.Warmup)
                    slot = warmup.slot_of(backend.identity)
                    assert slot is not None
                    ready = WarmupWitness(backend.identity, warmup.progress.epoch, slot, b"d" * 32)
                    await backend.send(ready, timeout=SECONDS)
                playing = await reached(first, RunState.RoundTrain)
            while server.state.run_state is not RunState.RoundTrain:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()

        async with LocalRun(context) as again:
            assert again.state.epoch.clients == playing.epoch.clients
            assert again.state.run_state is not RunState.Uninitialized

    assert [phase for place, phase in enumerate(seen) if phase not in seen[:place]][:3] == [
        RunState.WaitingForMembers,
        RunState.Warmup,
        RunState.RoundTrain,
    ]


@pytest.mark.slow
async def test_members_and_owner_go_on_when_the_first_provider_is_lost() -> None:
    with anyio.fail_after(SECONDS), TemporaryDirectory() as folder:
        async with LocalRun(ServerContext(state=small_state())) as server, anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve)
            async with member(server, Path(folder) / "a") as first, member(server, Path(folder) / "b") as second:
                said = await anyio.to_thread.run_sync(lose_route, server.address)
                assert server.address in said
                async with httpx2.AsyncClient() as http:
                    health = {"jsonrpc": "2.0", "id": 1, "method": "getHealth"}
                    answers = [
                        (await http.post(provider.rpc_url, json=health)).status_code for provider in server._chain.providers
                    ]
                assert answers == [503, 200]
                for backend in (first, second):
                    warmup = await reached(backend, RunState.Warmup)
                    slot = warmup.slot_of(backend.identity)
                    assert slot is not None
                    await backend.send(WarmupWitness(backend.identity, 0, slot, b"d" * 32), timeout=SECONDS)
                await reached(first, RunState.RoundTrain)
            while server.state.run_state is not RunState.RoundTrain:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()


async def test_what_others_can_reach_loses_no_route() -> None:
    async with LocalRun(ServerContext(state=small_state(), host="0.0.0.0")) as server:
        address = server.address.replace("0.0.0.0", "127.0.0.1")
        with pytest.raises(BackendError, match="refuses psyche_setFaults"):
            await anyio.to_thread.run_sync(lose_route, address)


async def test_a_chain_that_is_gone_loses_no_route() -> None:
    async with LocalRun(ServerContext(state=small_state())) as server:
        address = server.address
    with pytest.raises(BackendError, match="does not answer psyche_setFaults"):
        await anyio.to_thread.run_sync(lose_route, address)


async def test_who_earned_something_is_paid_at_the_end() -> None:
    """Into its own account, once, and not what was slashed."""
    paid: dict[bytes, int] = {}
    enough = anyio.Event()

    def note(signer: bytes, units: int) -> None:
        paid[signer] = paid.get(signer, 0) + units
        if len(paid) == 2:
            enough.set()

    earned = {bytes([n]) * 32: amount for n, amount in ((1, 700), (2, 0), (3, 9), (4, 300))}
    async with LocalRun(ServerContext(state=small_state(), on_paid=note)) as server:
        accounts = tuple(Account(signer, amount, 9 * (amount == 9)) for signer, amount in earned.items())
        finished = replace(server.state, run_state=RunState.Finished, accounts=accounts)
        run, treasury = server._run, server._treasury  # what is private is where they are, no more
        held = await server._chain.account(str(run.account))
        assert held is not None
        data = bytearray(held.data)
        data[HEADER_BYTES : HEADER_BYTES + image.SIZE] = image.encode(finished)
        data[16:24] = (int.from_bytes(data[16:24], "little") + 1).to_bytes(8, "little")
        await server._chain.set_account(str(run.account), ChainAccount(held.lamports, bytes(data), held.owner))
        at = treasurer.participant_address(treasury.run, Pubkey(bytes([4]) * 32))
        await server._chain.airdrop(str(at), 10**6)  # anybody can, and it is no participant for that
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve)
            with anyio.fail_after(SECONDS):
                await enough.wait()
            tasks.cancel_scope.cancel()
        for signer, amount in earned.items():
            own = await server._chain.account(str(tokens.associated(Pubkey(signer), treasury.mint)))
            assert (0 if own is None else tokens.parse(own).amount) == paid.get(signer, 0) == amount * (amount != 9)
        await server._pay_everybody()
        assert sum(paid.values()) == 1000, "nobody is paid twice"


async def test_a_saved_run_of_another_owner_is_refused(tmp_path: Path) -> None:
    context = ServerContext(state=small_state(), state_dir=tmp_path, key=SecretKey.generate())
    async with LocalRun(context):
        pass
    with pytest.raises(UserError, match="of another owner"):
        async with LocalRun(replace(context, key=SecretKey.generate())):
            pass


async def test_training_data_is_not_served() -> None:
    with pytest.raises(UserError, match="serves no training data"):
        async with LocalRun(ServerContext(state=small_state(), data=object())):  # type: ignore[arg-type]  # never looked into
            pass


def test_who_was_lost_is_said_once() -> None:
    clients = tuple(Client(NodeIdentity(bytes([n]) * 32, bytes([n]) * 32)) for n in range(3))
    before = replace(small_state(), run_state=RunState.RoundTrain, epoch=Epoch(clients=clients))
    dropped = (clients[0], replace(clients[1], state=ClientState.Dropped), clients[2])
    after = replace(before, epoch=Epoch(clients=dropped))
    assert lost(before, after) == (ClientsExited(epoch=0, slots=(1,)),)
    assert lost(after, after) == ()
    assert lost(before, replace(after, progress=replace(after.progress, epoch=1))) == ()
