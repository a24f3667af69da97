"""`psyche solana`: a chain of one's own, the programs, and wallets."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import click
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.context import ADDRESS, CALL_SECONDS, CommandContext, Outcome, command, example
from psyche_backend_solana.commands.run_manager import TableGroup
from psyche_backend_solana.programs import PROGRAMS, sums
from psyche_backend_solana.programs.own_ids import with_ids
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.settings import ChainSettings
from psyche_backend_solana.wallet import Wallet
from psyche_core.errors import ConfigError
from psyche_core.option_groups import GroupedCommand, option

ACCOUNT = "Account"
_LAMPORTS = 10**9


@click.command("programs", epilog=example("solana programs", "", "--out programs", "--out programs --keypairs program-keys"))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder to write the .so files to, for deploying.")
@click.option(
    "--keypairs",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of key pairs NAME.json; missing ones are created. With --out, write the programs for these addresses.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def programs(out: Path | None, keypairs: Path | None, as_json: bool) -> None:
    """List the on-chain programs of this release: address, size and SHA-256.

    The shipped addresses are for local chains, because their keys are public. On a chain shared with strangers use your own.
    """
    if keypairs is not None and out is None:
        message = "--keypairs writes programs for your own addresses; also give --out FOLDER"
        raise ConfigError(message)

    ids = dict(PROGRAMS) if keypairs is None else {name: _own_key(keypairs, name) for name in PROGRAMS}
    rows = {}
    for name in PROGRAMS:
        if f"{name}.so" not in sums():
            continue
        content = with_ids(name, ids)
        rows[name] = {
            "address": str(ids[name]),
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / f"{name}.so").write_bytes(content)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for name, row in rows.items():
        click.echo(f"{name:<12} {row['address']:<44} {row['bytes']:>8} bytes  {row['sha256']}")


def _own_key(folder: Path, name: str) -> Pubkey:
    """The address of a program's key pair, which is created if missing. Raises IdentityError."""
    file = folder / f"{name}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        Wallet.generate().save(file)
    return Wallet.load(file).pubkey


@click.command("keygen", epilog=example("solana keygen", "wallet.json"))
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def keygen(file: Path) -> None:
    """Create a wallet FILE that only you can read, in the format of solana-keygen, and print its address."""
    wallet = Wallet.generate()
    wallet.save(file)
    click.echo(str(wallet.pubkey))


@click.command("address", epilog=example("solana address", "wallet.json"))
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def address(file: Path) -> None:
    """Print the address of the wallet in FILE. The secret half is never shown."""
    click.echo(str(Wallet.load(file).pubkey))


@click.command("balance", cls=GroupedCommand, epilog=example("solana balance", "--address WALLET"))
@option("--address", type=ADDRESS, required=True, group=ACCOUNT, help="The account.")
@command(ChainSettings)
async def balance(context: CommandContext, address: Pubkey) -> Outcome:
    """Print the balance of an account."""
    lamports = await methods.balance(context.rpc, address, timeout=CALL_SECONDS)
    return Outcome(f"{lamports / _LAMPORTS:.9f} SOL", {"address": address, "lamports": lamports})


@click.command("airdrop", cls=GroupedCommand, epilog=example("solana airdrop", "--address WALLET --sol 10"))
@option("--address", type=ADDRESS, required=True, group=ACCOUNT, help="Wallet that gets it.")
@option("--sol", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, group=ACCOUNT, help="How much.")
@command(ChainSettings)
async def airdrop(context: CommandContext, address: Pubkey, sol: float) -> Outcome:
    """Request free SOL, which local chains and devnet give."""
    signature = await context.rpc.call("requestAirdrop", str(address), round(sol * _LAMPORTS), timeout=CALL_SECONDS)
    return Outcome(f"{sol:g} SOL were requested for {address}", {"address": address, "signature": signature})


@click.group(
    cls=TableGroup,
    table={
        "Commands": {
            "address": ("psyche_backend_solana.commands.solana:address", "Print a wallet's address."),
            "airdrop": ("psyche_backend_solana.commands.solana:airdrop", "Request free SOL from a test chain."),
            "balance": ("psyche_backend_solana.commands.solana:balance", "Print the balance of an account."),
            "bond": ("psyche_backend_solana.commands.payments.bonds:bond", "Put a bond down for a run, and have it back."),
            "create-token": (
                "psyche_backend_solana.commands.payments.token:create_token",
                "Create a token for paying a run's members.",
            ),
            "keygen": ("psyche_backend_solana.commands.solana:keygen", "Create a wallet."),
            "localnet": ("psyche_backend_solana.localnet.program:localnet", "Run a Solana chain on this machine."),
            "programs": ("psyche_backend_solana.commands.solana:programs", "List the on-chain programs, or write them to files."),
            "send-tokens": (
                "psyche_backend_solana.commands.payments.token:send_tokens",
                "Send tokens of SPL Token from this wallet to another one.",
            ),
        },
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
def solana() -> None:
    """A local Solana chain, the programs of this release, and wallets."""
