"""Commands of a run's owner: create, configure, pause, pay, close."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account

from psyche_backend_solana.commands.authority import free_index, owner_of, the_treasurer
from psyche_backend_solana.commands.client.plan import check_asked
from psyche_backend_solana.commands.closing import is_old, settle_slashed
from psyche_backend_solana.commands.context import (
    ADDRESS,
    CALL_SECONDS,
    CommandContext,
    Outcome,
    command,
    example,
    run_id_option,
    treasurer_index_option,
)
from psyche_backend_solana.layouts import coordinator, tokens, treasurer
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.runs import coordinator_account
from psyche_backend_solana.wallet import Wallet
from psyche_core.config.run_config import CoordinatorConfig, ModelConfig, load_run_file
from psyche_core.coordinator.checkpoints import loaded_from_hub
from psyche_core.coordinator.round.schedule import batch_size
from psyche_core.coordinator.state import Progress
from psyche_core.errors import ConfigError, UserError

CLIENT_VERSION_HELP = (
    "What members are to run: a version of psyche-core, a container image with its tag or digest, or sha256:… of one they know; "
    "any client when not given, or empty."
)
later_version_option: Callable[[Callable[..., None]], Callable[..., None]] = click.option(
    "--allow-later-version", "later", is_flag=True, help="Allow a version of psyche-core later than the one installed here."
)


@click.command(
    "create-run",
    epilog=example("run-manager create-run", "-r first-light -w owner.json", "-r first-light -c 0.1.0 -w owner.json"),
)
@run_id_option
@click.option("-c", "--client-version", default="", help=CLIENT_VERSION_HELP)
@later_version_option
@treasurer_index_option
@click.option(
    "--treasurer-collateral-mint", "mint", type=ADDRESS, help="Token that pays the members; makes a treasurer for the run."
)
@click.option("--join-authority", type=ADDRESS, help="Wallet that says who may join; ours when not given.")
@command()
async def create_run(
    context: CommandContext,
    run_id: str,
    client_version: str,
    later: bool,
    treasurer_index: int | None,
    mint: Pubkey | None,
    join_authority: Pubkey | None,
) -> Outcome:
    """Make a run. It has no configuration yet: update-config, then set-paused --resume, start it."""
    check_asked(client_version, ours=version("psyche-core"), later=later)
    if treasurer_index is not None and mint is None:
        message = "--treasurer-index means a run that is paid for: give --treasurer-collateral-mint, too"
        raise ConfigError(message)

    await context.check_ids("coordinator", "authorizer")
    space = Keypair()
    address, _ = coordinator.instance_address(run_id, program=context.programs.coordinator)
    run = coordinator.Run(address, space.pubkey(), context.programs.coordinator)
    grantor = join_authority or context.payer
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
    sentence = f"the run {run_id!r} is made: instance {address}, account {space.pubkey()}; configure it with update-config"
    return Outcome(sentence, {**facts, "signature": sent.signature})


@click.command(
    "update-config",
    epilog=example(
        "run-manager update-config",
        "-r first-light --config-path config.toml -w owner.json",
        '-r first-light --name "First light" --num-parameters 135000000 -w owner.json',
    ),
)
@run_id_option
@treasurer_index_option
@click.option("--config-path", type=click.Path(path_type=Path, dir_okay=False), help="TOML file with [config] and [model].")
@click.option("--restart-from-step", type=click.IntRange(1), help="Go on from this step, with the data that belongs to it.")
@click.option("--switch-to-hub", is_flag=True, help="Have the next epoch load the model from its hub and not from members.")
@click.option("--name", help="The run's name for people, at most 64 bytes.")
@click.option("--description", help="A few words about it, at most 280 bytes.")
@click.option("--num-parameters", type=click.IntRange(0), help="Parameters of the model, for people.")
@click.option("--vocab-size", type=click.IntRange(0), help="Tokens of its vocabulary, for people.")
@click.option("--client-version", help=CLIENT_VERSION_HELP)
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
    """Change a run's configuration, its place in the training, or what people are told of it. Most of it needs a paused run."""
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
        message = "nothing would change: everything that was given is as it is already"
        raise UserError(message)

    for instruction in coordinator.staged_update(owner.found.run, wanted, authority=context.payer):
        sent = await context.send(owner.say(context, instruction))
    sentence = f"the run {run_id!r} has new {', '.join(changed)}"
    return Outcome(sentence, {"run_id": run_id, "changed": changed, "signature": sent.signature})


@click.command(
    "set-paused",
    epilog=example(
        "run-manager set-paused",
        "-r first-light -w owner.json",
        "-r first-light --resume -w owner.json",
        "-r first-light --resume --from-checkpoint -w owner.json",
    ),
)
@run_id_option
@treasurer_index_option
@click.option("--resume", is_flag=True, help="Go on, or start for the first time.")
@click.option(
    "--from-checkpoint",
    is_flag=True,
    help="With --resume, of a run whose model no member holds any more: train again what came after the stored checkpoint.",
)
@command()
async def set_paused(
    context: CommandContext, run_id: str, treasurer_index: int | None, resume: bool, from_checkpoint: bool
) -> Outcome:
    """Pause a run after its current round, or let it go on. Nothing that was trained is lost, nobody has to join again."""
    if from_checkpoint and not resume:
        message = "--from-checkpoint says how to go on: give --resume, too"
        raise ConfigError(message)

    owner = await owner_of(context, run_id, treasurer_index)
    instruction = coordinator.set_paused(
        owner.found.run, authority=context.payer, paused=not resume, from_checkpoint=from_checkpoint
    )
    sent = await context.send(owner.say(context, instruction))
    state = (await coordinator_account(context.rpc, owner.found.run)).state
    phase = "Uninitialized" if state is None else state.run_state.name
    doing = (
        "is waiting for its present epoch to end, then it pauses"
        if state is not None and state.pending_pause
        else f"is now {phase}"
    )
    return Outcome(f"the run {run_id!r} {doing}", {"run_id": run_id, "run_state": phase, "signature": sent.signature})


@click.command(
    "set-future-epoch-rates",
    epilog=example("run-manager set-future-epoch-rates", "-r first-light --earning-rate-total-shared 1000000 -w owner.json"),
)
@run_id_option
@treasurer_index_option
@click.option(
    "--earning-rate-total-shared", "earning", type=click.IntRange(0, 2**64 - 1), help="Points an epoch's workers share."
)
@click.option(
    "--slashing-rate-per-client", "slashing", type=click.IntRange(0, 2**64 - 1), help="Points noted against who cheats."
)
@command()
async def set_future_epoch_rates(
    context: CommandContext, run_id: str, treasurer_index: int | None, earning: int | None, slashing: int | None
) -> Outcome:
    """Say what the epochs after the present one pay, in points: one point is one smallest unit of the treasurer's token."""
    if earning is None and slashing is None:
        message = "give --earning-rate-total-shared, --slashing-rate-per-client, or both"
        raise ConfigError(message)

    owner = await owner_of(context, run_id, treasurer_index)
    instruction = coordinator.set_future_epoch_rates(
        owner.found.run, authority=context.payer, earning_total_shared=earning, slashing_per_client=slashing
    )
    sent = await context.send(owner.say(context, instruction))
    facts = {"run_id": run_id, "earning_total_shared": earning, "slashing_per_client": slashing, "signature": sent.signature}
    return Outcome(f"the next epochs of {run_id!r} pay as you said", facts)


@click.command("close-run", epilog=example("run-manager close-run", "-r first-light -w owner.json"))
@run_id_option
@treasurer_index_option
@command()
async def close_run(context: CommandContext, run_id: str, treasurer_index: int | None) -> Outcome:
    """Close a halted run for good: its accounts are deleted, their rent comes back to this wallet.

    A treasurer is first told of every slashed member, which takes some transactions where they are many.
    """
    owner = await owner_of(context, run_id, treasurer_index)
    state = None
    if owner.treasury is not None or not await is_old(
        context, owner.found.run.account
    ):  # the program checks whether an old one is halted
        state = (await coordinator_account(context.rpc, owner.found.run)).state
    if state is not None and not state.run_state.halted:
        message = f"pause the run first (set-paused) and wait until it is: {run_id!r} is in {state.run_state.name}"
        raise UserError(message)

    if owner.treasury is None:
        sent = await context.send(coordinator.free(owner.found.run, authority=context.payer, spill=context.payer))
    else:
        if state is not None:
            await settle_slashed(context, await the_treasurer(context, owner.found, treasurer_index), state)
        own = tokens.associated(context.payer, owner.treasury.mint)
        sent = await context.send(
            tokens.create_associated(context.payer, context.payer, mint=owner.treasury.mint),
            treasurer.run_close(context.payer, context.payer, destination=own, treasury=owner.treasury),
        )
    return Outcome(f"the run {run_id!r} is closed", {"run_id": run_id, "signature": sent.signature})


def read_config(path: Path) -> tuple[CoordinatorConfig, ModelConfig]:
    """[config] and [model] of a file, which may be a whole state.toml. Raises ConfigError with every problem, one per line."""
    run_file = load_run_file(path, run_id="run")
    if run_file.model.LLM.data_location.name == "Server":
        message = (
            f"{path}: model.LLM.data_location.Server: a run on a chain has no server that could serve its data; say where "
            "members read it by themselves, for instance data_location.Http, Preprocessed or Local"
        )
        raise ConfigError(message)

    return run_file.config, run_file.model


def data_index_at(step: int, config: CoordinatorConfig, model: ModelConfig) -> int:
    """Number of a step's first sample, if every earlier step trained as many samples as scheduled."""
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
        message = f"{option} needs a configuration, and the run has none yet; give --config-path, too"
        raise ConfigError(message)

    return value
