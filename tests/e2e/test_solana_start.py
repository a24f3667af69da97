"""Start mode with a real client: found, started, seen in its run, and ended in order when the run asks for another version."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from psyche_backend_solana.wallet import Wallet
from psyche_core.telemetry.events import Ended, ModelLoaded, StepApplied
from solana_chain import EVERYBODY, Chain, tiny_run
from tests.conftest import LocalTestnet

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(300)]

RUN = "started-run"
MEMBER = "member"


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    started = Chain(tmp_path)
    yield started
    started.close()


@pytest.fixture
def config(local_testnet: LocalTestnet, tmp_path: Path) -> Path:
    """A run of a tiny model that one member trains alone, for longer than this test looks."""
    folder = local_testnet(
        init_min_clients=1,
        min_clients=1,
        total_steps=5000,
        rounds_per_epoch=2500,
        global_batch_size_start=2,
        global_batch_size_end=2,
    )
    return tiny_run(folder, tmp_path / "tokens", count=50_000)


@pytest.mark.soak
def test_start_mode_takes_part_with_a_real_client_until_the_run_asks_for_another(chain: Chain, config: Path) -> None:
    owner, wallet = chain.wallet("owner"), chain.wallet(MEMBER)
    address = str(Wallet.load(wallet).pubkey)
    words = ("-r", RUN, "-w", owner)
    chain.ask("run-manager", "create-run", *words, "-c", "test")
    chain.ask("run-manager", "update-config", *words, "--config-path", config)
    chain.ask("run-manager", "join-authorization-create", "--authorizer", EVERYBODY, "-w", owner)
    chain.ask("run-manager", "set-paused", *words, "--resume")

    env_file = chain.folder / "run.env"
    env_file.write_text(f"WALLET_PRIVATE_KEY_PATH={wallet}\nRPC={chain.providers[0]}\nMICRO_BATCH_SIZE=2\n")
    client = ("--bind-p2p-interface=127.0.0.1", "--device=cpu", "--torch-threads=1", "--logs=none", f"--base={config.parent}")
    files = (f"--events-file={chain.folder / MEMBER}.jsonl", f"--cache-dir={chain.folder / 'cache'}")
    chain.start(MEMBER, "run-manager", "--env-file", env_file, "--version-interval", 0.5, "--", *client, *files)
    manager = chain.processes[MEMBER]

    def mine() -> dict[str, Any]:
        return dict(chain.ask("run-manager", "json-dump-user", "-r", RUN, "--address", address))

    chain.until(lambda: any(isinstance(event, StepApplied) for event in chain.told(MEMBER)))
    assert mine()["state"] == "Healthy"
    assert address in {row["address"] for row in chain.ask("run-manager", "json-dump-run", "-r", RUN)["clients"]}

    chain.ask("run-manager", "update-config", *words, "--client-version", "99.0", "--allow-later-version")
    del chain.processes[MEMBER]  # it may end now
    assert manager.wait(timeout=60) == 2
    said = (chain.folder / f"{MEMBER}.log").read_text()
    assert f"taking part in {RUN!r} with the wallet {address}, with this installation's client" in said
    assert "asks for client version '99.0'" in said
    (ended,) = [event for event in chain.told(MEMBER) if isinstance(event, Ended)]
    assert ended.success, "it left in order"
    assert mine()["state"] != "Healthy"

    chain.ask("run-manager", "update-config", *words, "--client-version", "test")
    chain.start(MEMBER, "run-manager", "--env-file", env_file, "--", *client, *files)
    manager = chain.processes.pop(MEMBER)
    chain.until(lambda: sum(isinstance(event, ModelLoaded) for event in chain.told(MEMBER)) == 2)
    manager.send_signal(signal.SIGINT)
    assert manager.wait(timeout=60) == 0
    assert [event.success for event in chain.told(MEMBER) if isinstance(event, Ended)] == [True, True]
