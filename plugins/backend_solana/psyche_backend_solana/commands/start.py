"""`psyche run-manager --env-file FILE`: find a run this wallet may join, and take part in it.

Decided: no container. The client of this installation is started as a process, with what the file says as its environment, and
started again when it fails, after a pause, until it fails too often in a short time. When no run is named, the first one that
would let this wallet in is taken, those that wait for members before others. A run that asks for another version of the client is
not joined unless --any-version says so. The wallet's secret never stands on a command line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import anyio
import click
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.desk import Desk, load, open_desk
from psyche_backend_solana.commands.reading import runs_on_chain
from psyche_backend_solana.runs import coordinator_account, find_authorization
from psyche_backend_solana.settings import SolanaSettings
from psyche_core.errors import CommandRefused, ConfigError, UserError

PREFIX = "PSYCHE_"
NAMES = (
    "WALLET_PRIVATE_KEY_PATH",
    "RAW_WALLET_PRIVATE_KEY",
    "RPC",
    "WS_RPC",
    "RPC_2",
    "WS_RPC_2",
    "RPC_3",
    "WS_RPC_3",
    "RUN_ID",
    "AUTHORIZER",
)
"""What the file may say without our prefix, as the guides for members have it."""

TRIES = 5
PAUSE_SECONDS = 5.0
HEALTHY_SECONDS = 120.0
"""A client that ran so long has not failed at its start: it has all its tries again."""
UNVERSIONED = ("", "test")


def read_env(text: str, *, source: str) -> dict[str, str]:
    """KEY=VALUE lines; # begins a comment line, quotes around a value are dropped. Raises ConfigError."""
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        written = line.strip().removeprefix("export ").strip()
        if not written or written.startswith("#"):
            continue
        name, equals, value = written.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name.replace("_", "a").isalnum():
            message = f"{source}, line {number}: expected NAME=VALUE"
            raise ConfigError(message)

        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        found[name] = value
    return found


def with_prefix(given: Mapping[str, str]) -> dict[str, str]:
    """The same, with the known names as our programs read them. A name that has our prefix already wins."""
    return {(PREFIX + name if name in NAMES else name): value for name, value in given.items()} | {
        name: value for name, value in given.items() if name.startswith(PREFIX)
    }


@dataclass(slots=True)
class Patience:
    """Decides whether a client that ended is started again."""

    failures: int = 0

    def again(self, code: int, *, ran: float) -> bool:
        """Whether to start it again. code: how it ended, negative for a signal; ran: seconds."""
        if code in (0, 2) or code < 0 or code in (130, 143):
            return False  # the end, something the user must mend, or somebody stopped it

        self.failures = 1 if ran >= HEALTHY_SECONDS else self.failures + 1
        return self.failures < TRIES


async def choose_run(desk: Desk, wanted: str | None, *, wallet: Pubkey, grantees: tuple[Pubkey, ...] | None) -> tuple[str, str]:
    """Name and client version of the run to join: the one wanted, else the first that lets this wallet in. Raises UserError."""
    if wanted is not None:
        found = await desk.run(wanted)
        await find_authorization(desk.rpc, found.instance.join_authority, wallet, grantees=grantees, programs=desk.programs)
        return wanted, (await coordinator_account(desk.rpc, found.run)).client_version

    for row in await runs_on_chain(desk):
        if row["run_state"] in ("Uninitialized", "Finished", "Paused"):
            continue
        try:
            await find_authorization(desk.rpc, row["join_authority"], wallet, grantees=grantees, programs=desk.programs)
        except CommandRefused:
            continue
        return row["run_id"], row["client_version"]

    message = f"no run on this chain would let the wallet {wallet} in now; name one with RUN_ID to hear why"
    raise UserError(message)


def check_version(run_id: str, asked: str, *, ours: str, any_version: bool) -> None:
    """Refuse (UserError) a run that asks for another client than this one."""
    if asked in (*UNVERSIONED, ours) or any_version:
        return

    message = (
        f"the run {run_id!r} asks for client version {asked!r}, this is {ours}: install that one, "
        "or join all the same with --any-version"
    )
    raise UserError(message)


def start(env_file: Path, *, any_version: bool, more: tuple[str, ...]) -> int:
    """Do it; the client's exit code. more: further options of `psyche client train`. Raises UserError, BackendError."""
    try:
        text = env_file.expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read {env_file}: {getattr(error, 'strerror', error)}"
        raise ConfigError(message) from error

    said = with_prefix(read_env(text, source=str(env_file)))
    environment = {**os.environ, **said}
    settings = load_from(said)
    wallet = settings.wallet().pubkey

    async def look() -> tuple[str, str]:
        async with open_desk(settings) as desk:
            return await choose_run(desk, said.get("PSYCHE_RUN_ID"), wallet=wallet, grantees=settings.grantees)

    run_id, asked = anyio.run(look)
    check_version(run_id, asked, ours=version("psyche-core"), any_version=any_version)
    click.echo(f"taking part in {run_id!r} with the wallet {wallet}", err=True)
    program = [sys.executable, "-c", "from psyche_core.cli import main; main()"]
    return keep_running([*program, "client", "train", "--backend", "solana", "--run-id", run_id, *more], environment)


def load_from(said: Mapping[str, str]) -> SolanaSettings:
    """The backend's settings as the file says them. Raises ConfigError."""
    fields = {name: said.get(PREFIX + name.upper()) for name in SolanaSettings.model_fields}
    settings = load(SolanaSettings, {name: value or None for name, value in fields.items()})
    assert isinstance(settings, SolanaSettings)
    return settings


def keep_running(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Run a client and start it again as `Patience` says; its last exit code. Ctrl-C reaches it, and it leaves in order."""
    patience = Patience()
    while True:
        began = time.monotonic()
        with subprocess.Popen(arguments, env=dict(environment)) as client:  # noqa: S603  # our own program
            code = _wait(client)
        if not patience.again(code, ran=time.monotonic() - began):
            return code if code >= 0 else 128 - code
        click.echo(f"the client ended with {code}; starting it again in {PAUSE_SECONDS:g} s", err=True)
        time.sleep(PAUSE_SECONDS)


def _wait(client: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            return client.wait()
        except KeyboardInterrupt:
            continue  # it was told, too
