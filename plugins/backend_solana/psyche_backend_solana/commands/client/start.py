"""`psyche run-manager --env-file FILE`: find a run that this wallet may join, and take part in it.

The client is a process: of this installation, of another version or of a container image, as the run requests and the member
allows (`plan`). `supervisor` keeps it running. If no run is named, the first run is chosen that this wallet may
join and whose client may run here; runs that wait for members come first. Each check reads 96 bytes of the account; the whole
account is read only if they have changed. The wallet's secret is never on a command line. Windows is not supported, because it
cannot ask a process to leave cleanly.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import distribution, version
from pathlib import Path

import anyio
import click
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.client.env_file import PREFIX, read_env_file, words, yes
from psyche_backend_solana.commands.client.environment import prepare_environment
from psyche_backend_solana.commands.client.image import Containers, prepare_image
from psyche_backend_solana.commands.client.plan import Image, PipEnvironment, Plan, Trust, plan, read_trust
from psyche_backend_solana.commands.client.process import Launch, Ready
from psyche_backend_solana.commands.client.supervisor import SupervisorTimes, Versions, take_part
from psyche_backend_solana.commands.context import CALL_SECONDS, CommandContext, load, open_context
from psyche_backend_solana.commands.run_facts import runs_on_chain
from psyche_backend_solana.layouts.coordinator import Run
from psyche_backend_solana.layouts.coordinator_accounts import CLIENT_VERSION_BYTES
from psyche_backend_solana.lookup.runs import coordinator_account, find_authorization
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.rpc.failures import RpcError
from psyche_backend_solana.settings import SolanaSettings
from psyche_core.errors import BackendError, CommandRefused, UserError

NOT_JOINABLE = ("Uninitialized", "Finished", "Paused")
CLIENT_VERSION_OFFSET = 56
"""Offsets in the account of a run's state; see docs/reference/solana-programs.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """Options from the command line; missing ones are read from the file and the environment.

    images, install, anything: see `client_plan.Trust`. containers: fields are None if not given. grantor: only runs for which
    this wallet grants the right to join. more: further options of `psyche client train`.
    """

    images: tuple[str, ...] = ()
    install: bool | None = None
    anything: bool = False
    container_program: str | None = None
    container_options: tuple[str, ...] = ()
    local: bool = False
    entrypoint: str | None = None
    coordinator_program_id: str | None = None
    grantor: Pubkey | None = None
    more: tuple[str, ...] = ()
    times: SupervisorTimes = field(default_factory=SupervisorTimes)


async def choose_run(
    context: CommandContext,
    wanted: str | None,
    *,
    wallet: Pubkey,
    grantees: tuple[Pubkey, ...] | None,
    allowed: Callable[[str], object],
    grantor: Pubkey | None = None,
) -> tuple[str, str]:
    """Name and client version of the run to join: the wanted one, else the first that this wallet may join.

    allowed: raises UserError for a version that may not run here; such runs are skipped. grantor: only runs for which this
    wallet grants the right to join. Raises UserError, CommandRefused.
    """
    if wanted is not None:
        found = await context.run(wanted)
        await find_authorization(context.rpc, found.instance.join_authority, wallet, grantees=grantees, programs=context.programs)
        return wanted, (await coordinator_account(context.rpc, found.run)).client_version

    refused: list[str] = []
    for row in await runs_on_chain(context):
        if row["run_state"] in NOT_JOINABLE or grantor not in (None, row["join_authority"]):
            continue
        try:
            if context.pinned:
                await context.run(row["run_id"])
            await find_authorization(context.rpc, row["join_authority"], wallet, grantees=grantees, programs=context.programs)
            allowed(row["client_version"])
        except CommandRefused:
            continue
        except UserError as error:
            refused.append(f"{row['run_id']!r}: {error}")
            continue
        return row["run_id"], row["client_version"]

    if refused:
        message = f"the runs that the wallet {wallet} may join ask for clients that you do not allow here. {refused[0]}"
        raise UserError(message)

    message = f"the wallet {wallet} may join no run on this chain now; name one with RUN_ID to see the reason"
    raise UserError(message)


class VersionReader:
    """Reads repeatedly which version a run asks for."""

    def __init__(self, context: CommandContext, run_id: str) -> None:
        self._desk = context
        self._run_id = run_id
        self._run: Run | None = None
        self._seen = b""
        self._text = ""

    async def read(self) -> str:
        """The version that the run asks for now. Raises BackendError, RpcError."""
        if self._run is None:
            self._run = (await self._desk.run(self._run_id)).run
        part = (CLIENT_VERSION_OFFSET, CLIENT_VERSION_BYTES)
        (seen,) = await methods.accounts(self._desk.rpc, [self._run.account], data_slice=part, timeout=CALL_SECONDS)
        if seen is None or len(seen.data) != CLIENT_VERSION_BYTES:
            self._run = None  # closed; its owner may create it again, with another account
            message = (
                f"the run {self._run_id!r} is no longer on the chain: its owner has closed it; "
                "ask the owner whether it comes back"
            )
            raise BackendError(message)

        if seen.data != self._seen:
            self._text = (await coordinator_account(self._desk.rpc, self._run)).client_version
            self._seen = seen.data
        return self._text


def start(env_file: Path, options: StartOptions) -> int:
    """Find the run and take part in it. Returns the client's exit code. Raises UserError, BackendError."""
    if sys.platform == "win32":
        message = "run-manager --env-file needs Linux or macOS; here use `psyche client train --backend solana`, or WSL"
        raise UserError(message)

    given = read_env_file(env_file)
    if options.coordinator_program_id is not None:
        given[f"{PREFIX}COORDINATOR_PROGRAM_ID"] = options.coordinator_program_id
    try:
        return anyio.run(_start, given, options)
    except RpcError as error:
        raise BackendError(str(error)) from error


async def _start(given: Mapping[str, str], options: StartOptions) -> int:
    environment = {**os.environ, **given}
    settings = load_from(given)
    wallet = settings.wallet().pubkey
    trust = trust_of(options, environment)

    def decide(text: str) -> Plan:
        return plan(text, ours=version("psyche-core"), trust=trust)

    async with open_context(settings) as context:
        run_id, asked = await choose_run(
            context,
            environment.get(f"{PREFIX}RUN_ID") or None,
            wallet=wallet,
            grantees=settings.grantees,
            allowed=decide,
            grantor=options.grantor,
        )
        arguments = ("client", "train", "--backend=solana", f"--run-id={run_id}", *options.more)

        async def prepare(wanted: Plan) -> Ready:
            if isinstance(wanted, Image):
                return await prepare_image(
                    wanted,
                    containers_of(options, environment),
                    arguments,
                    environment=environment,
                    given=given,
                    wallet=settings.wallet_file,
                )
            if isinstance(wanted, PipEnvironment):
                return await prepare_environment(wanted, arguments, environment=environment, given=given)

            launch = Launch((sys.executable, "-c", "from psyche_core.cli import main; main()", *arguments), environment)
            return lambda: launch

        versions = Versions(read=VersionReader(context, run_id).read, plan=decide, prepare=prepare)
        click.echo(f"taking part in {run_id!r} with the wallet {wallet}, with {decide(asked)}", err=True)
        return await take_part(asked, versions, times=options.times)


def load_from(given: Mapping[str, str]) -> SolanaSettings:
    """The backend's settings from the file, and from the environment if the file lacks them. Raises ConfigError."""
    fields = {name: given.get(PREFIX + name.upper()) for name in SolanaSettings.model_fields}
    settings = load(SolanaSettings, {name: value or None for name, value in fields.items()})
    assert isinstance(settings, SolanaSettings)
    return settings


def trust_of(options: StartOptions, environment: Mapping[str, str]) -> Trust:
    """The member's choices from the command line, the file or the environment. Raises ConfigError."""
    images = options.images or words(environment, "ALLOW_IMAGE")
    install = options.install if options.install is not None else yes(environment, "ALLOW_INSTALL")
    return read_trust(images, install=came_from_an_index() if install is None else install, anything=options.anything)


def came_from_an_index() -> bool:
    """Whether psyche-core was installed by its name, from an index that the user already trusts. Source: PEP 610."""
    return distribution("psyche-core").read_text("direct_url.json") is None


def containers_of(options: StartOptions, environment: Mapping[str, str]) -> Containers:
    """How images are run."""
    program = options.container_program or environment.get(f"{PREFIX}CONTAINER_PROGRAM") or None
    more = options.container_options or words(environment, "CONTAINER_OPTIONS")
    return Containers(program=program, local=options.local, entrypoint=options.entrypoint or "psyche", more=more)
