"""The first actions of a server that continues a saved run: it reports a lost model, and applies its owner's decision.

The owner decides with options of `psyche server run` that are meant for one start: --restart-from-checkpoint, --restart-from-step
and --checkpoint. This module also makes the command lines that are shown to the owner.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Collection, Iterable
from pathlib import Path

from psyche_core.config.options.loading import option_fields
from psyche_core.config.options.server import ServerSettings
from psyche_core.config.run_config import Choice
from psyche_core.coordinator.commands import Pause, Resume, UpdateConfig
from psyche_core.coordinator.state import NO_DIGEST, CoordinatorState, Progress
from psyche_core.errors import UserError
from psyche_core.interfaces import BackendServer
from psyche_core.interfaces.backend import OwnerControl
from psyche_core.storage.model_stores.url import parse_model_url
from psyche_core.telemetry import events as telemetry
from psyche_core.types import ClientState, RunState

_FOR_ONE_START = ("restart_from_checkpoint", "restart_from_step", "checkpoint")
"""Options that a later start must not repeat."""


_REMEMBERED = 256
"""Number of members that are remembered; those of the last epoch come first."""


class TrainedMembers:
    """Remembers which members trained, to say which absent members may still have the model when no present member has it."""

    def __init__(self) -> None:
        self._latest: list[bytes] = []
        """Signers, those of the last epoch first."""

    def see(self, state: CoordinatorState) -> None:
        """Take in a state. From an epoch's first round until the next epoch's, the epoch's members count as having trained."""
        if state.run_state.active:
            self._add(client.id.signer for client in state.epoch.clients if client.state is not ClientState.Ejected)

    def away(self, state: CoordinatorState) -> tuple[str, ...]:
        """Return the first digits of the keys of members that trained and are absent, those of the last epoch first."""
        here = {identity.signer for identity in state.pending}
        here |= {client.id.signer for client in state.epoch.clients if client.state is ClientState.Healthy}
        trained = dict.fromkeys((*self._latest, *(account.signer for account in state.accounts if account.earned)))
        return tuple(signer.hex()[:8] for signer in trained if signer not in here)

    def _add(self, signers: Iterable[bytes]) -> None:
        newest = dict.fromkeys(signers)
        if not newest.keys() <= set(self._latest[: len(newest)]):
            self._latest = list(dict.fromkeys((*newest, *self._latest)))[:_REMEMBERED]


def server_command(settings: ServerSettings, *added: str) -> str:
    """Return the command line that starts this server again, for a shell in any folder. added: further arguments."""
    words = ["psyche", "server", "run"]
    for name in option_fields(type(settings)):
        value = getattr(settings, name)
        if name not in settings.model_fields_set or value is None or name in _FOR_ONE_START:
            continue

        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", str(value.absolute() if isinstance(value, Path) else value)]
    return shlex.join([*words, *added])


def new_run_warning(settings: ServerSettings, state: CoordinatorState) -> str:
    """Return the warning for a new run in a folder that has a server's key but no state: it may be the wrong folder."""
    return (
        f"a NEW run {state.run_id} begins, before step {state.progress.step}: {settings.save_state_dir} has the key of an "
        "earlier start, and no saved state of this run. If this run was trained already, stop this server now and put its saved "
        "state back: members of the old run then find their checkpoints and journals again"
    )


def listening_at(settings: ServerSettings, address: str) -> ServerSettings:
    """Return the settings with the port at which the server listens, if it chose the port itself, because members know that port.

    address: the address that members are given.
    """
    port = address.partition("#")[0].rpartition(":")[2]
    return settings if settings.server_port or not port.isdecimal() else settings.model_copy(update={"server_port": int(port)})


def lost_model(
    state: CoordinatorState,
    settings: ServerSettings,
    trained: TrainedMembers,
    *,
    continued: bool,
    later: telemetry.StateIsOlder | None,
) -> telemetry.ModelLost:
    """Return the event about a lost model, with the commands for this server's owner.

    continued: whether the server continued the run from a saved state. later: the latest state known that is later than that one.
    """
    kept = settings.save_state_dir is not None
    return telemetry.ModelLost(
        state.progress.step - 1,
        away=trained.away(state),
        ask_again=f"kill -USR1 {os.getpid()}" if hasattr(signal, "SIGUSR1") else "",
        begin_again=server_command(settings, "--restart-from-checkpoint") if kept else "",
        stored_step=state.stored.step,
        state_dir=str(settings.save_state_dir) if kept and continued else "",
        known_step=None if later is None else later.known_step,
        later_path=None if later is None else later.later_path,
    )


def check_decisions(server: BackendServer, settings: ServerSettings, *, schemes: Collection[str] = ()) -> None:
    """Raise UserError for a decision of the owner that the run's state does not allow. Call it before the start is reported.

    schemes: of plugins that store models.
    """
    if settings.checkpoint is not None:
        _check_checkpoint(server, settings.checkpoint, schemes)
    if settings.restart_from_step is not None:
        _check_return(server, settings.restart_from_step)
    if settings.restart_from_checkpoint:
        _check_loss(server)


def heed_loss(server: BackendServer, settings: ServerSettings) -> bool:
    """Return whether the continued run has lost its model and waits. Apply the owner's decision about it. Raises UserError."""
    if settings.restart_from_checkpoint:
        _check_loss(server).submit(Resume(from_checkpoint=True))
        return False

    return server.state.model_lost


def _check_loss(server: BackendServer) -> OwnerControl:
    """Return the server, if its run has lost its model. Raises UserError otherwise."""
    state = server.state
    if not (state.model_lost and isinstance(server, OwnerControl)):
        message = (
            f"--restart-from-checkpoint is for a run that has lost its model; this run has not, and is in {state.run_state.name} "
            f"before step {state.progress.step}: start the server without this option"
        )
        raise UserError(message)

    return server


def return_to_step(server: BackendServer, step: int) -> telemetry.WentBack:
    """Let the run continue before `step`, which follows an epoch's end that its members signed. Raises UserError."""
    owner, data_index = _check_return(server, step)
    state = server.state
    if state.run_state in (RunState.WaitingForMembers, RunState.Warmup):
        owner.submit(Pause())
    progress = Progress(epoch=state.progress.epoch, step=step, data_index=data_index)
    owner.submit(UpdateConfig(progress=progress))
    owner.submit(Resume())
    return telemetry.WentBack(state.progress.step - 1, step - 1, from_checkpoint=False, by_owner=True)


def _check_return(server: BackendServer, step: int) -> tuple[OwnerControl, int]:
    """Return the server, if its run can return to before `step`, and the first sample of that step. Raises UserError."""
    state = server.state
    signed = {end.step + 1: end for end in state.ends if end.digest != NO_DIGEST and end.step + 1 < state.progress.step}
    if step not in signed:
        known = ", ".join(map(str, sorted(signed, reverse=True))) or "none now"
        message = (
            f"--restart-from-step {step}: members can return to the end of an epoch that most of them signed; the steps that "
            f"follow such an end are: {known}. Members keep only the newest models on disk (--keep-steps of each client)"
        )
        raise UserError(message)

    if state.run_state is RunState.Finished:
        message = f"--restart-from-step {step}: the run is finished"
        raise UserError(message)

    if not isinstance(server, OwnerControl) or state.run_state.active:
        message = (
            f"--restart-from-step {step}: the run is in {state.run_state.name}; start the server without this option, pause the "
            "run (SIGUSR1), wait until it is Paused, and start the server with this option then"
        )
        raise UserError(message)

    return server, signed[step].data_index


def name_checkpoint(server: BackendServer, url: str, *, schemes: Collection[str] = ()) -> None:
    """Set a new location of the run's stored checkpoint. Raises UserError if members have the model, or may have it.

    schemes: of plugins that store models.
    """
    choice = _check_checkpoint(server, url, schemes)
    assert isinstance(server, OwnerControl)
    state = server.state
    begins = _begins_from_checkpoint(state)
    language_model = state.model.LLM.model_copy(update={"checkpoint": choice})
    if begins:
        server.submit(Pause())
    server.submit(UpdateConfig(model=state.model.model_copy(update={"LLM": language_model})))
    if begins:
        server.submit(Resume())


def _begins_from_checkpoint(state: CoordinatorState) -> bool:
    return state.from_checkpoint and state.run_state in (RunState.WaitingForMembers, RunState.Warmup)


def _check_checkpoint(server: BackendServer, url: str, schemes: Collection[str]) -> Choice:
    """Return the stored checkpoint at `url`, if the run's may be replaced. Raises UserError."""
    choice = parse_model_url(url, schemes=schemes).checkpoint()
    state = server.state
    begins = _begins_from_checkpoint(state)
    if not (isinstance(server, OwnerControl) and (begins or state.model_lost)):
        message = (
            f"--checkpoint is for a run that must continue from its stored checkpoint; this run is in {state.run_state.name} "
            f"before step {state.progress.step}, and its members have the model: start the server without this option"
        )
        raise UserError(message)

    return choice
