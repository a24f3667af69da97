"""The common parts of all commands: options, a connection, a wallet, and the form of output.

Options come from the settings classes, so names, help and environment variables are the same everywhere. A command asks no
questions. It prints one sentence, or JSON with --json, and exits with 0 only if the chain has confirmed the result. Network
errors become BackendError and wrong values ConfigError: one sentence each, no traceback.
"""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import click
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.lookup.runs import RunFound, checked_ids, find_run
from psyche_backend_solana.lookup.treasurers import check_owner
from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.rpc.failures import RpcError
from psyche_backend_solana.sending.sender import Sender, Sent
from psyche_backend_solana.settings import ChainSettings, WalletSettings, parse_address
from psyche_backend_solana.wallet import Signer, Wallet
from psyche_core.errors import BackendError, ConfigError
from psyche_core.option_groups import option
from psyche_core.text_safety import printable_lines

_Command = TypeVar("_Command", bound=Callable[..., Any])

SEND_SECONDS = 90.0
"""Maximum seconds for one transaction: a blockhash is valid for about a minute."""
CALL_SECONDS = 20.0
RUN = "Run"
"""Heading of the options that say which run is meant, and what to do with it."""

ENVIRONMENT_NOTE = "Endpoints and wallet are also read from the environment, as PSYCHE_<OPTION>. Options take precedence."


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a command. sentence: text for the user. facts: values for programs (--json)."""

    sentence: str
    facts: Mapping[str, Any] = field(default_factory=dict)


class CommandContext:
    """A connection and, if given, a wallet that sends."""

    def __init__(self, rpc: Rpc, programs: Programs, *, wallet: Wallet | None, price: int, owner: Pubkey | None = None) -> None:
        """owner: required owner of every run; None allows any."""
        self.rpc = rpc
        self.programs = programs
        self._owner = owner
        self._wallet = wallet
        self._sender = None if wallet is None else Sender(rpc, wallet, price=price, programs=programs)

    @property
    def payer(self) -> Pubkey:
        """The wallet's address."""
        assert self._wallet is not None, "this command was given no wallet"
        return self._wallet.pubkey

    @property
    def pinned(self) -> bool:
        """Whether runs must belong to one owner."""
        return self._owner is not None

    async def run(self, run_id: str) -> RunFound:
        """A run by its name. Raises CommandRefused (WrongRun, OtherOwner), ConfigError."""
        found = await find_run(self.rpc, run_id, programs=self.programs, timeout=CALL_SECONDS)
        await check_owner(self.rpc, found, self._owner, programs=self.programs, timeout=CALL_SECONDS)
        return found

    async def check_ids(self, *names: str) -> None:
        """Check that these programs do not use shipped addresses on a shared chain. Raises ConfigError, BackendError."""
        await checked_ids(self.rpc, self.programs, *names, timeout=CALL_SECONDS)

    async def send(self, *instructions: Instruction, signers: tuple[Signer, ...] = ()) -> Sent:
        """Execute instructions in one transaction. Raises CommandRefused, BackendError."""
        assert self._sender is not None, "this command was given no wallet"
        try:
            return await self._sender.send(*instructions, signers=signers, timeout=SEND_SECONDS)
        except TimeoutError as error:
            message = (
                f"the chain has not confirmed it within {SEND_SECONDS:g} s, so the outcome is unknown; "
                "check with json-dump-run before trying again"
            )
            raise BackendError(message) from error


def example(command: str, *lines: str) -> str:
    """The examples at the end of a help text. lines: the arguments after `psyche run-manager COMMAND`."""
    shown = "\n".join(f"  psyche {command} {line}".rstrip() for line in lines or ("",))
    return f"\b\nExample:\n{shown}\n\n{ENVIRONMENT_NOTE}"


def command(
    settings: type[ChainSettings] = WalletSettings,
) -> Callable[[Callable[..., Awaitable[Outcome]]], Callable[..., None]]:
    """A decorator that turns an async function of a context and the command's options into a click callback."""

    def decorate(action: Callable[..., Awaitable[Outcome]]) -> Callable[..., None]:
        @_options_of(settings)
        @option("--json", "as_json", is_flag=True, group="Output", help="Print one JSON object, for programs.")
        @functools.wraps(action)
        def callback(as_json: bool, **given: Any) -> None:
            chain = {name: given.pop(name) for name in settings.model_fields if name in given}
            perform(functools.partial(action, **given), load(settings, chain), as_json=as_json)

        return callback

    return decorate


def perform(action: Callable[[CommandContext], Awaitable[Outcome]], settings: ChainSettings, *, as_json: bool) -> None:
    """Run an action with a context and print its outcome. Raises UserError, BackendError."""

    async def work() -> Outcome:
        async with open_context(settings) as context:
            return await action(context)

    try:
        outcome = anyio.run(work)
    except RpcError as error:
        raise BackendError(str(error)) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
    click.echo(json.dumps(plain(outcome.facts), indent=2) if as_json else printable_lines(outcome.sentence))


@asynccontextmanager
async def open_context(settings: ChainSettings) -> AsyncIterator[CommandContext]:
    """Open a context. Raises UserError for a wallet or an endpoint that cannot be used."""
    wallet = settings.wallet() if isinstance(settings, WalletSettings) else None
    price = settings.priority_fee if isinstance(settings, WalletSettings) else 0
    async with Rpc(settings.endpoints()) as rpc:
        yield CommandContext(rpc, settings.programs, wallet=wallet, price=price, owner=settings.wanted_owner)


def load(settings: type[ChainSettings], given: Mapping[str, Any]) -> ChainSettings:
    """Load settings from options and environment. Raises ConfigError."""
    try:
        return settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            option = "--" + str(problem["loc"][0]).lower().replace("_", "-")
            problems.append(f"{option}: {str(problem['msg']).removeprefix('Value error, ')}")
        raise ConfigError("; ".join(problems)) from None


def plain(value: Any) -> Any:
    """A value for JSON: addresses as base58, bytes as hexadecimal."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return value.hex()
    if value is None or isinstance(value, str | int | float | bool):
        return value

    return str(value)


# Only newer releases of click have a generic ParamType.
if TYPE_CHECKING:
    _AddressType = click.ParamType[Pubkey]
else:
    _AddressType = click.ParamType


class Address(_AddressType):
    """A parameter that is an address in base58."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Pubkey:
        """Parse the address. Fails with one sentence."""
        if isinstance(value, Pubkey):
            return value
        try:
            return parse_address(str(value))
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


ADDRESS = Address()
_Decorator = Callable[[Callable[..., None]], Callable[..., None]]

run_id_option: _Decorator = option("-r", "--run-id", required=True, group=RUN, help="Name of the run, at most 32 bytes.")
treasurer_index_option: _Decorator = option(
    "--treasurer-index",
    type=click.IntRange(0, 2**64 - 1),
    group=RUN,
    help="Number of the treasurer's run. For create-run: a free number to use. Elsewhere it must be the number in the run.",
)


def _options_of(settings: type[ChainSettings]) -> Callable[[_Command], _Command]:
    def decorate(function: _Command) -> _Command:
        for name, info in reversed(settings.model_fields.items()):
            extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
            if extra.get("option", True):
                function = _option(name, info, short=extra.get("short"), group=str(extra.get("group", "")))(function)
        return function

    return decorate


def _option(name: str, info: FieldInfo, *, short: object, group: str) -> Callable[[_Command], _Command]:
    dashed = "--" + name.replace("_", "-")
    kind = info.annotation
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    flags = [f"{dashed}/--no-{dashed[2:]}"] if kind is bool else [dashed]
    if short is not None:
        flags.insert(0, str(short))
    of_path = click.Path(path_type=Path) if kind is Path else kind
    return option(*flags, name, type=of_path, default=None, group=group, help=info.description)
