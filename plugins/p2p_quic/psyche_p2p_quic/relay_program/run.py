"""Runs `psyche relay run`: reads its options, starts the relay, keeps its policy up to date, and ends it on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from psyche_core.errors import ConfigError, UserError
from psyche_core.text_safety import printable
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.relay.access import Access, MemberAccess, OpenAccess, TokenAccess
from psyche_p2p_quic.relay.limits import RelayLimits
from psyche_p2p_quic.relay_program.members import CoordinatorSource, Membership, MemberSource
from psyche_p2p_quic.relay_program.open_files import within_open_files
from psyche_p2p_quic.relay_program.service import RelayService, ServiceOptions
from psyche_p2p_quic.relay_program.token_file import fingerprint, first_tokens, read_tokens

_log = logging.getLogger("psyche.relay")
_LOOK_SECONDS = 2.0
_OTHER_FILES = 64
_LEAST_UNPROVEN = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """All options of the command. access: a policy; token_file, sources: what keeps it up to date."""

    service: ServiceOptions
    access: Access = field(default_factory=OpenAccess)
    token_file: Path | None = None
    sources: tuple[MemberSource, ...] = ()


def read_options(given: Mapping[str, Any]) -> RelayOptions:
    """Check the command's options together. Raises ConfigError, UserError, IdentityError."""
    path = given["identity_secret_key_path"]
    key = None if path is None else SecretKey.load(path)
    run_ids, addresses = given["run_ids"], given["server_addrs"]
    wanted = given["access"] or ("members" if run_ids else "token" if given["token_file"] else None)
    if wanted is None:
        message = (
            "say who may use the relay: --run-id and --server-addr for the members of a run, --token-file FILE for whoever knows "
            "a token, or --access open for everybody"
        )
        raise ConfigError(message)
    if (wanted == "members") != bool(run_ids):
        message = "--access members and --run-id belong together" if run_ids else "--access members needs --run-id"
        raise ConfigError(message)
    if (wanted == "token") != (given["token_file"] is not None):
        message = "--access token and --token-file FILE belong together"
        raise ConfigError(message)
    if addresses and len(addresses) != len(run_ids):
        message = f"expected one --server-addr for each --run-id, got {len(addresses)} for {len(run_ids)}"
        raise ConfigError(message)

    _check_together(given)
    for option in ("client_rate", "total_rate"):
        if given[option] is not None and not math.isfinite(given[option]):
            message = f"--{option.replace('_', '-')} {given[option]}: expected a number of megabytes a second"
            raise ConfigError(message)

    service = ServiceOptions(
        hosts=given["hosts"] or ("127.0.0.1",),
        port=given["port"],
        observer=given["observer"],
        observer_port=given["observer_port"],
        url=given["url"],
        tls_cert=given["tls_cert"],
        tls_key=given["tls_key"],
        public_metrics=given["public_metrics"],
        limits=RelayLimits(
            clients=given["max_clients"],
            connections=given["max_clients"] + max(given["max_clients"], _LEAST_UNPROVEN),
            connections_per_address=given["max_connections_per_address"],
            total_queue_bytes=given["max_queued"] * 10**6,
            client_rate=None if given["client_rate"] is None else given["client_rate"] * 1e6,
            total_rate=None if given["total_rate"] is None else given["total_rate"] * 1e6,
        ),
        key=key,
    )
    if wanted == "token":
        file = given["token_file"]
        return RelayOptions(service=service, access=TokenAccess(first_tokens(file)), token_file=file)
    if wanted == "open":
        return RelayOptions(service=service)

    places = addresses or [""] * len(run_ids)
    sources = tuple(
        CoordinatorSource(run_id, address, backend=given["backend"], key=key)
        for run_id, address in zip(run_ids, places, strict=True)
    )
    return RelayOptions(service=service, access=MemberAccess(), sources=sources)


def _check_together(given: Mapping[str, Any]) -> None:
    """Raise ConfigError for options that contradict each other or make each other useless."""
    client, total = given["client_rate"], given["total_rate"]
    families = [":" in host for host in given["hosts"]]
    contradictions = [
        (not given["observer"] and given["observer_port"] is not None, "--no-observer and --observer-port exclude each other"),
        (
            not given["run_ids"] and given["backend"] != "tcp",
            "--backend is for the coordinator of --run-id, and no --run-id was given; leave it out, or name a run",
        ),
        (
            not given["run_ids"] and not given["observer"] and given["identity_secret_key_path"] is not None,
            "-i is the key of the observer and for the coordinators of runs; with --no-observer and no --run-id it has no use",
        ),
        (
            client is not None and total is not None and client > total,
            f"--client-rate {client} is over --total-rate {total}, which all clients share; give one client less",
        ),
        (len(set(families)) < len(families), "--host takes one IPv4 and one IPv6 address, got two of one family; 0.0.0.0 is all"),
    ]
    for holds, message in contradictions:
        if holds:
            raise ConfigError(message)


def run_relay(options: RelayOptions) -> int:
    """Run until a signal; return the exit code. Raises PsycheError."""
    return asyncio.run(_run(options))


async def _run(options: RelayOptions) -> int:
    limits = within_open_files(options.service.limits, others=_OTHER_FILES)
    options = replace(options, service=replace(options.service, limits=limits))
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for stopping in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(stopping, signals.put_nowait, int(stopping))

    async with (
        RelayService(options.access, options.service) as service,
        _kept_up_to_date(service, options) as (failed, membership),
    ):
        _announce(service, options)
        ended = asyncio.create_task(signals.get())
        if membership is not None:
            answered = asyncio.create_task(membership.answered())
            await asyncio.wait([ended, failed, answered], return_when=asyncio.FIRST_COMPLETED)
            answered.cancel()
        if not (ended.done() or failed.done()):
            _print_ready(() if membership is None else membership.silent)
        await asyncio.wait([ended, failed], return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            ended.cancel()
            failed.result()  # raises the error of a coordinator that was given
        number = ended.result()
        _log.info("stopping: telling %d clients", service.relay.router.client_count)
        draining = asyncio.create_task(service.drain())
        again = asyncio.create_task(signals.get())
        await asyncio.wait([draining, again], return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, again):
            task.cancel()
    return 0 if number == signal.SIGTERM else 128 + number


@contextlib.asynccontextmanager
async def _kept_up_to_date(
    service: RelayService, options: RelayOptions
) -> AsyncIterator[tuple[asyncio.Task[None], Membership | None]]:
    """Keep the policy up to date from its file or its runs. Yield a task that ends only if that cannot continue."""
    access = options.access
    membership = None
    if isinstance(access, MemberAccess):
        members = access

        def changed(keys: frozenset[bytes]) -> None:
            if members.replace(keys):
                service.reconsider()

        membership = Membership(options.sources, changed)
        task = asyncio.create_task(membership.follow())
    elif isinstance(access, TokenAccess) and options.token_file is not None:
        task = asyncio.create_task(_follow_tokens(service, access, options.token_file))
    else:
        task = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]  # never ends
    try:
        yield task, membership
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()


async def _follow_tokens(service: RelayService, access: TokenAccess, path: Path) -> None:
    before = fingerprint(path)
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        now = fingerprint(path)
        if now == before:
            continue

        before = now
        try:
            tokens = read_tokens(path)
        except UserError as error:
            _log.warning("%s; the tokens read before stay valid", printable(str(error)))
            continue
        access.replace(tokens)
        service.reconsider()
        if tokens:
            _log.info("read %d tokens from %s", len(tokens), path)
        else:
            _log.warning("the token file %s holds no token any more, so nobody is let in and all were disconnected", path)


def _announce(service: RelayService, options: RelayOptions) -> None:
    """Print what the owner needs to know, on standard output."""
    access = options.access
    who = "members of the given runs" if isinstance(access, MemberAccess) else "everybody"
    who = "who knows a token" if isinstance(access, TokenAccess) else who
    lines = [f"relay {service.url}", f"for {who}"]
    if service.observer is not None:
        location = service.observer.location
        lines.append(f"address observer UDP port {location.port}, key {location.key.hex()}")
    if options.service.tls_cert is None and not (options.service.url or "").startswith("https:"):
        lines.append("note: without --tls-cert, who talks to whom, how much, and tokens can be read on the way; contents cannot")
    if options.service.tls_cert is None and (options.service.url or "").startswith("https:"):
        lines.append("note: without --tls-cert this relay speaks plain HTTP; what members reach at the URL must do TLS for it")
    if all(host in {"127.0.0.1", "::1"} for host in options.service.hosts):
        lines.append("note: only this machine can reach it; --host 0.0.0.0 lets others in")
    with contextlib.suppress(BrokenPipeError):
        for line in lines:
            click.echo(line)


def _print_ready(silent: Sequence[str]) -> None:
    """Print the last line. silent: runs whose coordinators have not answered yet."""
    lines = [
        f"note: the coordinator of {name} does not answer yet, so its members are not served; the relay goes on asking"
        for name in silent
    ]
    with contextlib.suppress(BrokenPipeError):
        for line in [*lines, "ready"]:
            click.echo(line)
