"""Commands of a run's owner: create, configure, pause, pay, close."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import click
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account

from psyche_backend_solana.commands.authority import free_index, owner_of, the_treasurer
from psyche_backend_solana.commands.client.plan import check_asked
from psyche_backend_solana.commands.context import (
    ADDRESS,
    CALL_SECONDS,
    RUN,
    CommandContext,
    Outcome,
    command,
    example,
    run_id_option,
    treasurer_index_option,
)
from psyche_backend_solana.commands.run.closing import is_old, refund_of, settle_slashed
from psyche_backend_solana.commands.token_amounts import amount_of, decimals, units_of
from psyche_backend_solana.layouts import bond, coordinator, tokens, treasurer
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES
from psyche_backend_solana.localnet.settings import LAMPORTS_PER_SOL
from psyche_backend_solana.lookup.runs import RunFound, coordinator_account
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.wallet import Wallet
from psyche_core.config.run_config import CoordinatorConfig, ModelConfig, load_run_file
from psyche_core.config.schema import check_run_id
from psyche_core.config.sentences import shown
from psyche_core.coordinator.checkpoints import loaded_from_hub
from psyche_core.coordinator.round.batch_size import batch_size
from psyche_core.coordinator.state import Progress
from psyche_core.errors import CommandRefused, ConfigError, UserError
from psyche_core.option_groups import GroupedCommand, option
from psyche_core.types import RunState

CHANGES = "Changes"
"""Heading of what `update-config` changes."""

POLL_SECONDS = 1.0
"""Seconds between two readings of a run that is being paused."""

TICK_SECONDS = 10.0
"""Seconds without a change of the run after which we send a tick ourselves."""

CLIENT_VERSION_HELP = (
    "Client that members must run: a version of psyche-core, a container image with tag or digest, or sha256:… of a known image. "
    "Default, and for `latest` or nothing: any client."
)


def _client_version(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Return "" for `latest`, which elsewhere names an image's newest build; here it means any version."""
    return "" if value == "latest" else value


later_version_option: Callable[[Callable[..., None]], Callable[..., None]] = option(
    "--allow-later-version",
    "later",
    is_flag=True,
    group=RUN,
    help="Allow a version of psyche-core later than the one installed here.",
)


@click.command(
    "create-run",
    cls=GroupedCommand,
    epilog=example("run-manager create-run", "-r first-light -w owner.json", "-r first-light -c 0.1.0 -w owner.json"),
)
@run_id_option
@option("-c", "--client-version", default="", callback=_client_version, group=RUN, help=CLIENT_VERSION_HELP)
@later_version_option
@treasurer_index_option
@option(
    "--treasurer-collateral-mint",
    "mint",
    type=ADDRESS,
    group=RUN,
    help="Token that pays the members. Creates a treasurer for the run.",
)
@option("--join-authority", type=ADDRESS, group=RUN, help="Wallet that grants the right to join. Default: this wallet.")
@option(
    "--with-bonds",
    "bonds",
    is_flag=True,
    group=RUN,
    help="Let members join only with a bond, by terms that this wallet sets next: see psyche solana bond create.",
)
@command()
async def create_run(
    context: CommandContext,
    run_id: str,
    client_version: str,
    later: bool,
    treasurer_index: int | None,
    mint: Pubkey | None,
    join_authority: Pubkey | None,
    bonds: bool,
) -> Outcome:
    """Create a run. It has no configuration yet; start it with update-config and then set-paused --resume."""
    try:
        check_run_id(run_id)
    except ValueError as error:
        message = f"--run-id {shown(run_id)}: {error}"
        raise ConfigError(message) from error
    check_asked(client_version, ours=version("psyche-core"), later=later)
    if treasurer_index is not None and mint is None:
        message = "--treasurer-index is for a paid run; give --treasurer-collateral-mint, too"
        raise ConfigError(message)

    if bonds and join_authority is not None:
        message = "--with-bonds makes the terms of the bonds the run's join authority; leave --join-authority out"
        raise ConfigError(message)

    await context.check_ids("coordinator", "authorizer")
    space = Keypair()
    address, _ = coordinator.instance_address(run_id, program=context.programs.coordinator)
    run = coordinator.Run(address, space.pubkey(), context.programs.coordinator)
    grantor = join_authority or context.payer
    if bonds:
        await context.check_ids("bond")
        grantor = bond.bonds_address(context.payer, address, program=context.programs.bond)
    rent = await methods.rent_exempt(context.rpc, ACCOUNT_BYTES, timeout=CALL_SECONDS)
    made = create_account(
        CreateAccountParams(
            from_pubkey=context.payer,
            to_pubkey=space.pubkey(),
            lamports=rent,
            space=ACCOUNT_BYTES,
            owner=context.programs.coordinator,
        )
    )
    facts: dict[str, Any] = {"run_id": run_id, "instance": address, "account": space.pubkey(), "join_authority": grantor}
    if mint is None:
        begin = coordinator.init(
            run,
            payer=context.payer,
            run_id=run_id,
            main_authority=context.payer,
            join_authority=grantor,
            client_version=client_version,
        )
    else:
        await context.check_ids("treasurer")
        index = await free_index(context, run_id) if treasurer_index is None else treasurer_index
        treasury = treasurer.Treasury.of(
            index,
            mint=mint,
            instance=address,
            coordinator=space.pubkey(),
            program=context.programs.treasurer,
            coordinator_program=context.programs.coordinator,
        )
        facts |= {"treasurer_run": treasury.run, "treasurer_index": index, "vault": treasury.vault}
        begin = treasurer.run_create(
            context.payer,
            treasury,
            index=index,
            main_authority=context.payer,
            join_authority=grantor,
            run_id=run_id,
            client_version=client_version,
        )
    sent = await context.send(made, begin, signers=(Wallet(space),))
    sentence = f"the run {run_id!r} was created: instance {address}, account {space.pubkey()}; configure it with update-config"
    if bonds:
        sentence += ", and set the terms of its bonds with `psyche solana bond create`: nobody can join before"
    return Outcome(sentence, {**facts, "signature": sent.signature})


@click.command(
    "update-config",
    cls=GroupedCommand,
    epilog=example(
        "run-manager update-config",
        "-r first-light --config-path config.toml -w owner.json",
        '-r first-light --name "First light" --num-parameters 135000000 -w owner.json',
    ),
)
@run_id_option
@treasurer_index_option
@option(
    "--config-path", type=click.Path(path_type=Path, dir_okay=False), group=CHANGES, help="TOML file with [config] and [model]."
)
@option(
    "--restart-from-step",
    type=click.IntRange(1),
    group=CHANGES,
    help="Continue from this step, with the data that belongs to it.",
)
@option("--switch-to-hub", is_flag=True, group=CHANGES, help="Let the next epoch load the model from its hub, not from members.")
@option("--name", group=CHANGES, help="Display name of the run, at most 64 bytes.")
@option("--description", group=CHANGES, help="Description, at most 280 bytes.")
@option("--num-parameters", type=click.IntRange(0), group=CHANGES, help="Number of the model's parameters, for display.")
@option("--vocab-size", type=click.IntRange(0), group=CHANGES, help="Size of the vocabulary, for display.")
@option("--client-version", callback=_client_version, group=CHANGES, help=CLIENT_VERSION_HELP)
@later_version_option
@command()
async def update_config(
    context: CommandContext,
    run_id: str,
    treasurer_index: int | None,
    config_path: Path | None,
    restart_from_step: int | None,
    switch_to_hub: bool,
    client_version: str | None,
    later: bool,
    **described: Any,
) -> Outcome:
    """Change a run's configuration, its training progress or its description. Most changes need a paused run."""
    if client_version is not None:
        check_asked(client_version, ours=version("psyche-core"), later=later)
    owner = await owner_of(context, run_id, treasurer_index)
    account = await coordinator_account(context.rpc, owner.found.run)
    state = account.state
    config, model = (None, None) if config_path is None else read_config(config_path)
    if switch_to_hub:
        model = loaded_from_hub(_needed(model or (state and state.model), "--switch-to-hub"))
    progress = None
    if restart_from_step is not None:
        progress = Progress(
            epoch=0 if state is None else state.progress.epoch,
            step=restart_from_step,
            data_index=data_index_at(
                restart_from_step,
                _needed(config or (state and state.config), "--restart-from-step"),
                _needed(model or (state and state.model), "--restart-from-step"),
            ),
        )
    metadata = replace(account.metadata, **{name: value for name, value in described.items() if value is not None})
    wanted = coordinator.Update(
        config=config,
        model=model,
        progress=progress,
        metadata=None if metadata == account.metadata else metadata,
        client_version=None if client_version == account.client_version else client_version,
    )
    changed = [
        name for name in ("config", "model", "progress", "metadata", "client_version") if getattr(wanted, name) is not None
    ]
    if not changed:
        message = "nothing would change: all given values are already set; `psyche run-manager json-dump-run` prints them"
        raise UserError(message)

    for instruction in coordinator.staged_update(owner.found.run, wanted, authority=context.payer):
        sent = await context.send(owner.as_owner(context, instruction))
    sentence = f"the run {run_id!r} has new {', '.join(changed)}"
    return Outcome(sentence, {"run_id": run_id, "changed": changed, "signature": sent.signature})


@click.command(
    "set-paused",
    cls=GroupedCommand,
    epilog=example(
        "run-manager set-paused",
        "-r first-light -w owner.json",
        "-r first-light --wait -w owner.json",
        "-r first-light --resume -w owner.json",
        "-r first-light --resume --from-checkpoint -w owner.json",
    ),
)
@run_id_option
@treasurer_index_option
@option("--resume", is_flag=True, group=RUN, help="Resume, or start for the first time.")
@option(
    "--from-checkpoint",
    is_flag=True,
    group=RUN,
    help="With --resume, if no member has the model: continue from the stored checkpoint; later steps are trained again.",
)
@option("--wait", is_flag=True, group=RUN, help="Wait until the run is paused: its present round, then the cooldown.")
@command()
async def set_paused(
    context: CommandContext, run_id: str, treasurer_index: int | None, resume: bool, from_checkpoint: bool, wait: bool
) -> Outcome:
    """Pause a run after its present round, or resume it. No training is lost, and nobody has to join again.

    The present round is the last one that is trained; it is applied, and ends the epoch. After the cooldown the run is Paused.
    """
    if from_checkpoint and not resume:
        message = "--from-checkpoint is for resuming; give --resume, too"
        raise ConfigError(message)
    if wait and resume:
        message = "--wait is for pausing; leave --resume out"
        raise ConfigError(message)

    owner = await owner_of(context, run_id, treasurer_index)
    instruction = coordinator.set_paused(
        owner.found.run, authority=context.payer, paused=not resume, from_checkpoint=from_checkpoint
    )
    sent = await context.send(owner.as_owner(context, instruction))
    if wait:
        await _until_halted(context, owner.found)
    state = (await coordinator_account(context.rpc, owner.found.run)).state
    phase = "Uninitialized" if state is None else state.run_state.name
    doing = f"is now {phase}"
    if state is not None and state.pending_pause:
        after = "the cooldown" if state.run_state is RunState.Cooldown else "its present round and the cooldown"
        doing = f"is in {phase} and pauses after {after} (--wait waits until it is Paused)"
    return Outcome(f"the run {run_id!r} {doing}", {"run_id": run_id, "run_state": phase, "signature": sent.signature})


async def _until_halted(context: CommandContext, found: RunFound) -> None:
    """Wait until a run is halted. Its members tick; if no member does, we tick. Raises CommandRefused, BackendError."""
    nonce, since = None, anyio.current_time()
    while True:
        account = await coordinator_account(context.rpc, found.run)
        if account.state is None or account.state.run_state.halted:
            return

        now = anyio.current_time()
        if account.nonce != nonce:
            nonce, since = account.nonce, now
        elif now - since >= TICK_SECONDS:
            since = now
            with contextlib.suppress(CommandRefused):  # nothing is due, or a member was faster
                await context.send(coordinator.tick(found.run, user=context.payer))
        await anyio.sleep(POLL_SECONDS)


@click.command(
    "set-future-epoch-rates",
    cls=GroupedCommand,
    epilog=example(
        "run-manager set-future-epoch-rates",
        "-r first-light --earning-rate-total-shared 1000 -w owner.json",
        "-r first-light --earning-rate-total-shared 0.5 --slashing-rate-per-client 10 -w owner.json",
    ),
)
@run_id_option
@treasurer_index_option
@option("--earning-rate-total-shared", "earning", metavar="TOKENS", group=RUN, help="Tokens that the workers of an epoch share.")
@option("--slashing-rate-per-client", "slashing", metavar="TOKENS", group=RUN, help="Tokens charged to a member that cheats.")
@command()
async def set_future_epoch_rates(
    context: CommandContext, run_id: str, treasurer_index: int | None, earning: str | None, slashing: str | None
) -> Outcome:
    """Set what the epochs after the current one pay, in tokens of the run's treasurer, which may have decimals.

    A run without a treasurer counts points, which are whole numbers.
    """
    if earning is None and slashing is None:
        message = "give --earning-rate-total-shared, --slashing-rate-per-client, or both"
        raise ConfigError(message)

    owner = await owner_of(context, run_id, treasurer_index)
    places = 0 if owner.treasury is None else await decimals(context, owner.treasury.mint)
    shared = None if earning is None else units_of(earning, places, at_least=0)
    charged = None if slashing is None else units_of(slashing, places, at_least=0)
    instruction = coordinator.set_future_epoch_rates(
        owner.found.run, authority=context.payer, earning_total_shared=shared, slashing_per_client=charged
    )
    sent = await context.send(owner.as_owner(context, instruction))
    facts = {"run_id": run_id, "earning_total_shared": shared, "slashing_per_client": charged, "signature": sent.signature}
    what = "points" if owner.treasury is None else "tokens"
    said = [f"{earning} {what} shared by the workers"] if earning is not None else []
    said += [f"{slashing} {what} charged to a member that cheats"] if slashing is not None else []
    return Outcome(f"the next epochs of {run_id!r}: {', '.join(said)}", facts)


@click.command("close-run", cls=GroupedCommand, epilog=example("run-manager close-run", "-r first-light -w owner.json"))
@run_id_option
@treasurer_index_option
@command()
async def close_run(context: CommandContext, run_id: str, treasurer_index: int | None) -> Outcome:
    """Close a halted run permanently: its accounts are deleted, and their rent is returned to this wallet.

    All slashed members are first recorded with the treasurer; with many members this takes several transactions.
    """
    owner = await owner_of(context, run_id, treasurer_index)
    state = None
    if owner.treasury is not None or not await is_old(
        context, owner.found.run.account
    ):  # the program checks whether an old one is halted
        state = (await coordinator_account(context.rpc, owner.found.run)).state
    if state is not None and not state.run_state.halted:
        message = f"pause the run first (set-paused --wait): {run_id!r} is in {state.run_state.name}"
        raise UserError(message)

    if owner.treasury is None:
        refund = await refund_of(context, owner)
        sent = await context.send(coordinator.free(owner.found.run, authority=context.payer, spill=context.payer))
    else:
        if state is not None:
            await settle_slashed(context, await the_treasurer(context, owner.found, treasurer_index), state)
        refund = await refund_of(context, owner)
        own = tokens.associated(context.payer, owner.treasury.mint)
        sent = await context.send(
            tokens.create_associated(context.payer, context.payer, mint=owner.treasury.mint),
            treasurer.run_close(context.payer, context.payer, destination=own, treasury=owner.treasury),
        )
    returned = f"{refund.lamports / LAMPORTS_PER_SOL:.9f} SOL of rent"
    if owner.treasury is not None and refund.units is not None:
        returned += f" and {amount_of(refund.units, await decimals(context, owner.treasury.mint))} tokens of its vault"
    facts = {"run_id": run_id, "lamports": refund.lamports, "units": refund.units, "signature": sent.signature}
    return Outcome(f"the run {run_id!r} is closed; {returned} came back to this wallet", facts)


def read_config(path: Path) -> tuple[CoordinatorConfig, ModelConfig]:
    """[config] and [model] of a file, which may be a whole state.toml. Raises ConfigError with every problem, one per line."""
    run_file = load_run_file(path, run_id="run")
    if run_file.model.LLM.data_location.name == "Server":
        message = (
            f"{path}: model.LLM.data_location.Server: a run on a chain has no data server; say where "
            "members read it themselves, for instance data_location.Http, Preprocessed or Local"
        )
        raise ConfigError(message)

    return run_file.config, run_file.model


def data_index_at(step: int, config: CoordinatorConfig, model: ModelConfig) -> int:
    """Return the index of a step's first sample, if every earlier step trained as many samples as scheduled."""
    samples = 0
    for done in range(1, step):
        wanted = batch_size(
            samples * model.LLM.max_seq_len,
            start=config.global_batch_size_start,
            end=config.global_batch_size_end,
            warmup_tokens=config.global_batch_size_warmup_tokens,
        )
        if wanted == config.global_batch_size_end:  # after the ramp, the rest is a product
            return samples + wanted * (step - done)
        samples += wanted
    return samples


def _needed(value: Any, option: str) -> Any:
    if not value:
        message = f"{option} needs a configuration, and the run has none yet; also give --config-path"
        raise ConfigError(message)

    return value
