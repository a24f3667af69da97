"""`psyche solana localnet`: a local chain in the foreground."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import anyio
import click

from psyche_backend_solana.localnet.settings import LAMPORTS_PER_SOL, ChainSettings
from psyche_core.errors import ConfigError, UserError
from psyche_core.option_groups import GroupedCommand, option
from psyche_core.text_safety import PrintableFormatter

_DOORS = 16
NETWORK, CHAIN, FAULTS = "Network", "Chain", "Faults, for tests"
"""Headings of options."""


@click.command(
    cls=GroupedCommand,
    epilog="\b\nExample:\n"
    "  psyche solana localnet --state chain.state --airdrop 42zGDbG3vNi2RYNVYaSnaifPxMiCPm3Rbc8nS23ZDc2s:100",
    context_settings={"max_content_width": 110},
)
@option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    group=NETWORK,
    help="IP to listen on. Anybody who can reach it may do anything.",
)
@option("--rpc-port", default=8899, show_default=True, group=NETWORK, help="Port of JSON-RPC over HTTP. 0 picks a free one.")
@option(
    "--ws-port",
    type=int,
    group=NETWORK,
    help="Port of websockets. [default: the one after --rpc-port, where clients look for it]",
)
@option(
    "--providers", default=1, show_default=True, group=NETWORK, help="Pairs of ports for the same chain, like several providers."
)
@option("--state", type=click.Path(path_type=Path, dir_okay=False), group=CHAIN, help="File to continue from and to save to.")
@option("--reset", is_flag=True, group=CHAIN, help="Start a new chain, whatever --state contains.")
@option("--slot-ms", default=400, show_default=True, group=CHAIN, help="Length of a slot. A blockhash is valid for 150 slots.")
@option(
    "--airdrop",
    "airdrops",
    multiple=True,
    metavar="ADDRESS:SOL",
    group=CHAIN,
    help="SOL for an address on a new chain. Repeatable.",
)
@option("--no-programs", is_flag=True, group=CHAIN, help="Leave out Psyche's programs; SPL Token and memo are always there.")
@option(
    "--program",
    "own_programs",
    multiple=True,
    type=(str, click.Path(path_type=Path, dir_okay=False, exists=True)),
    metavar="ADDRESS FILE",
    group=CHAIN,
    help="Another program to deploy, as an ELF file. Repeatable.",
)
@option("--upgrade-authority", metavar="ADDRESS", group=CHAIN, help="Who may upgrade the programs. [default: nobody]")
@option("--allow-faults", is_flag=True, group=FAULTS, help="Serve psyche_setFaults and psyche_saveState, for tests.")
@option("--latency-ms", default=0, group=FAULTS, help="Wait before every answer and notification.")
@option("--drop-share", default=0.0, group=FAULTS, help="Share (0 to 1) of HTTP requests closed unread.")
@option("--lose-answer-share", default=0.0, group=FAULTS, help="Share of HTTP requests executed, then closed without an answer.")
@option("--swallow-share", default=0.0, group=FAULTS, help="Share of transactions accepted and never processed.")
@option(
    "--expire-blockhashes-after",
    default=150,
    show_default=True,
    group=FAULTS,
    help="Number of slots for which a blockhash is valid.",
)
def localnet(**given: Any) -> None:
    """Run a Solana chain on this machine, with Psyche's programs on it.

    Solana clients can use it: wallets, solana-py, web3.js. Transactions run in a real virtual machine and are final at once. SOL
    is free (requestAirdrop). Without --state the chain is deleted at the end. Ctrl-C saves and stops it; a killed process loses
    the last few seconds.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    faults = {name: given.pop(name) for name in _FAULTS}
    providers = given.pop("providers")
    if not 1 <= providers <= _DOORS:
        message = f"--providers is from 1 to {_DOORS}, got {providers}"
        raise ConfigError(message)

    number = anyio.run(_run, read_settings(given), faults, providers)
    raise SystemExit(128 + number)


_FAULTS = ("latency_ms", "drop_share", "lose_answer_share", "swallow_share", "expire_blockhashes_after")


def read_settings(given: dict[str, Any]) -> ChainSettings:
    """Settings from the command's options. Raises UserError and ConfigError."""
    airdrops = dict(read_airdrop(text) for text in given.pop("airdrops"))
    own = {}
    for address, path in given.pop("own_programs"):
        try:
            own[address] = path.read_bytes()
        except OSError as error:
            message = f"cannot read the program {path}: {error.strerror}"
            raise UserError(message) from error

    from psyche_backend_solana.localnet.chain import shipped_programs

    shipped = {} if given.pop("no_programs") else shipped_programs()
    return ChainSettings(**given, airdrops=airdrops, programs={**shipped, **own})


def read_airdrop(text: str) -> tuple[str, int]:
    """ADDRESS:SOL as address and lamports. Raises ConfigError."""
    address, _, amount = text.rpartition(":")
    try:
        lamports = Decimal(amount) * LAMPORTS_PER_SOL
        whole = int(lamports)
    except (InvalidOperation, ValueError, OverflowError) as error:
        message = f"--airdrop is ADDRESS:SOL, such as {address or 'ADDRESS'}:100, got {text!r}"
        raise ConfigError(message) from error

    if not address or whole != lamports or whole <= 0:
        message = f"--airdrop is ADDRESS:SOL, with at least one lamport and no part of one, got {text!r}"
        raise ConfigError(message)

    return address, whole


async def _run(settings: ChainSettings, faults: dict[str, Any], providers: int) -> int:
    """Run until a signal arrives, and return its number."""
    from psyche_backend_solana.localnet.chain import LocalChain

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with LocalChain(settings) as chain:
            for index in range(1, providers):
                port = settings.rpc_port + 2 * index if settings.rpc_port else 0
                await chain.open_provider(port)
            for provider in chain.providers:
                provider.faults.set(**faults)
            _announce(chain, settings)
            async for number in signals:
                return int(number)
    return int(signal.SIGTERM)


def _announce(chain: Any, settings: ChainSettings) -> None:
    with contextlib.suppress(BrokenPipeError):
        for provider in chain.providers:
            click.echo(f"RPC {provider.rpc_url}  websockets {provider.ws_url}")
        for address in settings.programs or {}:
            differs = "  (not the build of this package; the chain keeps its own; --reset installs this one)"
            click.echo(f"program {address}{differs if address in chain.differing else ''}")
        if settings.state is not None:
            click.echo(f"{'continues from' if chain.restored else 'saves to'} {settings.state}")
        click.echo("ready")
        sys.stdout.flush()
