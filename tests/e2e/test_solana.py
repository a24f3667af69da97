"""A run on a chain, everything by the commands people use: chain, token, run, rewards, members with wallets of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from psyche_core.telemetry.events import Ended, EpochDigest, StepApplied
from solana_chain import EVERYBODY, Chain, tiny_run
from tests.conftest import LocalTestnet

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(300)]

RUN = "paid-run"
CHEATING = Path(__file__).with_name("cheating_client.py")
MEMBERS = ("client-1", "client-2", "client-3")
STEPS, ROUNDS = 12, 6
TOKENS = 3
POINTS = TOKENS * 10**6
"""What an epoch pays."""


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    started = Chain(tmp_path)
    yield started
    started.close()


@pytest.fixture
def config(local_testnet: LocalTestnet, tmp_path: Path) -> Path:
    """A run file of a tiny model and random tokens that members read by themselves."""
    folder = local_testnet(
        total_steps=STEPS,
        rounds_per_epoch=ROUNDS,
        warmup_steps=2,
        global_batch_size_start=6,
        global_batch_size_end=6,
    )
    return tiny_run(folder, tmp_path / "tokens", count=200_000)


def start_member(chain: Chain, config: Path, name: str, wallet: Path, *, inside: Sequence[object] = ()) -> None:
    """inside: a command that runs the client."""
    where = ("--backend", "solana", "--rpc", chain.providers[0], "--rpc-2", chain.providers[1], "-w", wallet)
    here = ("--bind-p2p-interface", "127.0.0.1", "--device", "cpu", "--base", config.parent)
    how = (*here, "--torch-threads", 1, "--micro-batch-size", 4)
    log = ("--logs", "none", "--events-file", chain.folder / f"{name}.jsonl", "--cache-dir", chain.folder / f"{name}-cache")
    chain.start(name, "client", "train", "--run-id", RUN, *where, *how, *log, inside=inside)


@pytest.mark.soak  # test_solana_start.py and plugins/backend_solana/tests/test_hosting.py run each time
def test_members_of_a_run_on_a_chain_are_paid_though_an_rpc_provider_dies_midway(chain: Chain, config: Path) -> None:
    owner = chain.wallet("owner")
    mint = chain.ask("solana", "create-token", "--supply", 100, "-w", owner)["mint"]
    of_run, by_owner = ("-r", RUN), ("-w", owner)
    chain.ask("run-manager", "create-run", *of_run, "-c", "test", "--treasurer-collateral-mint", mint, *by_owner)
    chain.ask("run-manager", "update-config", *of_run, "--config-path", config, *by_owner)
    chain.ask("run-manager", "set-future-epoch-rates", *of_run, "--earning-rate-total-shared", TOKENS, *by_owner)
    chain.ask("run-manager", "treasurer-top-up-rewards", *of_run, "--collateral-amount", 50, *by_owner)
    chain.ask("run-manager", "join-authorization-create", "--authorizer", EVERYBODY, *by_owner)
    chain.ask("run-manager", "set-paused", *of_run, "--resume", *by_owner)

    wallets = {name: chain.wallet(name) for name in MEMBERS}
    for name, wallet in wallets.items():
        start_member(chain, config, name, wallet)

    def steps(name: str) -> list[int]:
        return [event.step for event in chain.told(name) if isinstance(event, StepApplied)]

    chain.until(lambda: all(2 in steps(name) for name in MEMBERS))
    assert max(steps("client-1")) < STEPS, "the run was over before anything broke"
    chain.break_door(0)
    chain.until(lambda: all(chain.processes[name].poll() == 0 for name in MEMBERS), seconds=200)

    for name in MEMBERS:
        told = chain.told(name)
        assert steps(name) == list(range(1, STEPS + 1))
        (ended,) = [event for event in told if isinstance(event, Ended)]
        assert ended.success
    digests = {
        tuple((event.step, event.sha256) for event in chain.told(name) if isinstance(event, EpochDigest)) for name in MEMBERS
    }
    assert len(digests) == 1, "replicas are equal"

    paid = {}
    for name, wallet in wallets.items():
        paid[name] = chain.ask("run-manager", "treasurer-claim-rewards", *of_run, "-w", wallet, provider=1)["units"]
    assert all(paid.values()), paid
    epochs = STEPS // ROUNDS
    assert epochs * (POINTS - len(MEMBERS)) < sum(paid.values()) <= epochs * POINTS, "all was paid but fractions"


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["other-data", "false-gradients"])
def test_a_cheat_is_ejected_from_a_run_on_a_chain_and_not_paid(chain: Chain, local_testnet: LocalTestnet, kind: str) -> None:
    checked = {"verification_percent": 50, "init_min_clients": 5, "min_clients": 3, "max_round_train_time": 20}
    batch = {"global_batch_size_start": 10, "global_batch_size_end": 10}
    folder = local_testnet(total_steps=40, rounds_per_epoch=40, warmup_steps=2, **checked, **batch)
    config = tiny_run(folder, chain.folder / "tokens", count=200_000)
    owner = chain.wallet("owner")
    of_run, by_owner = ("-r", RUN), ("-w", owner)
    chain.ask("run-manager", "create-run", *of_run, "-c", "test", *by_owner)
    chain.ask("run-manager", "update-config", *of_run, "--config-path", config, *by_owner)
    rates = ("--earning-rate-total-shared", 1000, "--slashing-rate-per-client", 7)
    chain.ask("run-manager", "set-future-epoch-rates", *of_run, *rates, *by_owner)
    chain.ask("run-manager", "join-authorization-create", "--authorizer", EVERYBODY, *by_owner)
    chain.ask("run-manager", "set-paused", *of_run, "--resume", *by_owner)
    honest = [f"client-{number}" for number in range(1, 5)]
    for name in (*honest, "cheat"):
        inside = (sys.executable, CHEATING, kind) if name == "cheat" else ()
        start_member(chain, config, name, chain.wallet(name), inside=inside)

    cheat = chain.processes.pop("cheat")
    assert cheat.wait(timeout=240) == 1, "who is ejected has failed"
    (ended,) = [event for event in chain.told("cheat") if isinstance(event, Ended)]
    assert "failed twice in this epoch" in ended.reason
    chain.until(lambda: all(chain.processes[name].poll() == 0 for name in honest), seconds=240)
    accounts = chain.ask("run-manager", "json-dump-run", *of_run)["accounts"]
    assert not any(account["slashed"] for account in accounts)
    assert sum(account["earned"] > 0 for account in accounts) == len(honest)
