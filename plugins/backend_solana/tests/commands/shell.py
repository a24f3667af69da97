"""A shell that runs the commands against a local chain, and a run's file: for tests of the commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
from click.testing import CliRunner, Result
from solders.account import Account

from psyche_backend_solana.hooks import psyche_register_commands
from psyche_backend_solana.layouts.coordinator_accounts import HEADER_BYTES, CoordinatorAccount
from psyche_backend_solana.localnet.chain import LocalChain
from psyche_backend_solana.wallet import Wallet
from psyche_core.cli.failures import describe_failure
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.state import CoordinatorState

RUN_MANAGER, SOLANA = psyche_register_commands()
START = 1_700_000_000

CONFIG = """
[config]
warmup_time = 100
cooldown_time = 10
max_round_train_time = 50
round_witness_time = 5
epoch_time = 1000
total_steps = 10
init_min_clients = 1
min_clients = 1
witness_nodes = 0
global_batch_size_start = 2
global_batch_size_end = 6
global_batch_size_warmup_tokens = 100
verification_percent = 0
waiting_for_members_extra_time = 2

[model.LLM]
architecture = "HfLlama"
data_type = "Pretraining"
max_seq_len = 8
cold_start_warmup_steps = 0
data_location = "Dummy"
optimizer = "AdamW"

[model.LLM.checkpoint.P2P]
repo_id = "owner/model"

[model.LLM.lr_schedule.Constant]
base_lr = 0.1
warmup_init_lr = 0.0
warmup_steps = 0
"""


def said(result: Result, code: int) -> str:
    """What a command that must end with `code` says: its output, or the sentence of its failure."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        described = describe_failure(result.exception)
        assert described is not None, repr(result.exception)
        assert described[1] == code, described
        return described[0]
    assert result.exit_code == code, result.output
    return result.output


class Shell:
    """Runs commands; `owner` and `member` are wallets with money."""

    def __init__(self, folder: Path, chain: LocalChain, portal: anyio.from_thread.BlockingPortal) -> None:
        self.folder = folder
        self.chain = chain
        self.portal = portal
        self.wallets: dict[str, Wallet] = {}
        self.config = folder / "config.toml"
        self.config.write_text(CONFIG)

    def wallet(self, name: str, lamports: int = 10**11) -> Wallet:
        if name not in self.wallets:
            self.wallets[name] = wallet = Wallet.generate()
            wallet.save(self.folder / f"{name}.json")
            if lamports:
                self.portal.call(self.chain.airdrop, str(wallet.pubkey), lamports)
        return self.wallets[name]

    def pass_time(self, seconds: float) -> None:
        self.portal.call(self.chain.advance, seconds)

    def __call__(self, *words: str, wallet: str | None = None, code: int = 0) -> str:
        more = []
        if wallet is not None:
            self.wallet(wallet)
            more = ["-w", str(self.folder / f"{wallet}.json")]
        runner = CliRunner(env={"PSYCHE_RPC": self.chain.rpc_url})
        result = runner.invoke(RUN_MANAGER.load(), [*words, *more], catch_exceptions=True)
        return said(result, code)

    def change_state(self, run: str, change: Callable[[CoordinatorState], CoordinatorState]) -> None:
        """Write another state into the run's account, as its members' commands would."""
        address = self.json("json-dump-run", "-r", run)["account"]
        account = self.portal.call(self.chain.account, address)
        assert account is not None
        data = bytes(account.data)
        state = CoordinatorAccount.parse(data).state
        assert state is not None
        data = data[:HEADER_BYTES] + image.encode(change(state)) + data[HEADER_BYTES + image.SIZE :]
        self.portal.call(self.chain.set_account, address, Account(account.lamports, data, account.owner))

    def json(self, *words: str, wallet: str | None = None) -> Any:
        return json.loads(self(*words, "--json", wallet=wallet))
