"""Where the next members load the model from, and who may set that location (F9).

If the run's owner listed signers, these signers may set it, whether they are members or not. If the list is empty, one elected
client per epoch may set it. The election uses the epoch's seed over all slots of the epoch. If the elected client is no longer
healthy or reports that it cannot store the model, the next client in the drawn order takes over. The location that it reports
counts once a quorum has signed the end of the epoch: until then, the run might have to begin again with a model that a liar made
up, while the one stored earlier is known. After the run's last step it counts at once. The location changes only
between an epoch's cooldown and the next warmup, because all members must load the same model. The checkpoint kinds change as in
the reference implementation: after an epoch, members load from peers; after a pause, or when no peer of the old epoch is left,
they load from the hub again. Unlike there, a run that loads from the Hub may be stored in a bucket then, and the other way round.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import ValidationError

from psyche_core.config.run_config import CHECKPOINTS, Choice, ModelConfig
from psyche_core.coordinator.commands import Checkpoint, Outcome
from psyche_core.coordinator.history import present_end
from psyche_core.coordinator.phases import active_round
from psyche_core.coordinator.round.committee import drawn_order
from psyche_core.coordinator.state import NO_DIGEST, CoordinatorState
from psyche_core.errors import CoordinatorError
from psyche_core.types import NodeIdentity, RunState

_TO_PEERS = {"Hub": "P2P", "Dummy": "P2P", "Gcs": "P2PGcs"}
_TO_HUB = {"P2P": "Hub", "P2PGcs": "Gcs"}
_FOLLOWS = {
    ("P2P", "Hub"): "P2P",
    ("P2P", "Gcs"): "P2PGcs",
    ("P2PGcs", "Gcs"): "P2PGcs",
    ("P2PGcs", "Hub"): "P2P",
    ("Hub", "Hub"): "Hub",
    ("Hub", "Gcs"): "Gcs",
    ("Gcs", "Gcs"): "Gcs",
    ("Gcs", "Hub"): "Hub",
}
OPEN = (RunState.Cooldown, RunState.WaitingForMembers, RunState.Paused, RunState.Finished)
"""States in which the storage location of the model can be set."""


def loaded_from_peers(model: ModelConfig) -> ModelConfig:
    """Return the model's configuration for the time after an epoch: new members load the model from the epoch's members."""
    return _renamed(model, _TO_PEERS)


def loaded_from_hub(model: ModelConfig) -> ModelConfig:
    """Return the model's configuration for the case that no member is left who could share the model."""
    return _renamed(model, _TO_HUB)


def _renamed(model: ModelConfig, names: dict[str, str]) -> ModelConfig:
    present = model.LLM.checkpoint
    return _with_checkpoint(model, Choice(names.get(present.name, present.name), present.settings))


def _with_checkpoint(model: ModelConfig, checkpoint: Choice) -> ModelConfig:
    return model.model_copy(update={"LLM": model.LLM.model_copy(update={"checkpoint": checkpoint})})


def checkpointer_slots(state: CoordinatorState) -> tuple[int, ...]:
    """Return the healthy slots in the order in which they are responsible for storing the epoch's model.

    The first slot stores the model; if it fails, the next one takes over. If the owner listed checkpointers, the order is the
    order of that list. Otherwise it is the drawn order, and () before the epoch's first round. Slots that reported that they
    cannot store the model are left out.
    """
    healthy = set(state.healthy_slots).difference(state.epoch.ceded)
    if state.config.checkpointers:
        signers = {state.epoch.clients[slot].id.signer.hex(): slot for slot in healthy}
        return tuple(signers[key] for key in state.config.checkpointers if key in signers)
    if state.current_round is None:
        return ()

    order = drawn_order(tuple(range(len(state.epoch.clients))), state.epoch.seed)
    return tuple([slot for slot in order if slot in healthy])


def checkpointer_slot(state: CoordinatorState) -> int | None:
    """Return the first of `checkpointer_slots`, or None if there is none."""
    return next(iter(checkpointer_slots(state)), None)


def is_checkpointer(state: CoordinatorState, identity: NodeIdentity) -> bool:
    """Whether this client may set the storage location: every listed signer, or only the elected slot if none is listed."""
    if state.config.checkpointers:
        return identity.signer.hex() in state.config.checkpointers

    slot = state.slot_of(identity)
    return slot is not None and slot == checkpointer_slot(state)


def is_end_signed(state: CoordinatorState) -> bool:
    """Whether a quorum has signed the model with which the last epoch ended, or the run is over: nobody goes back behind it."""
    return present_end(state).digest != NO_DIGEST or state.run_state is RunState.Finished


def checkpoint(state: CoordinatorState, command: Checkpoint) -> Outcome:
    """Set the storage location that a checkpointer reports, or pass the duty to the next one.

    The command's location is a Hub or Gcs choice, or its TOML table. None passes the duty on.

    Raises CoordinatorError (InvalidRunState, NoActiveRound, InvalidCheckpoint).
    """
    if state.run_state not in OPEN:
        message = f"checkpoints are stored after an epoch's rounds, the run is in {state.run_state.name}"
        raise CoordinatorError("InvalidRunState", message)

    if not state.config.checkpointers:
        active_round(state)  # there is no elected checkpointer before the first round
    if not is_checkpointer(state, command.sender):
        whose = "listed by the run's owner" if state.config.checkpointers else "elected in this epoch"
        raise CoordinatorError("InvalidCheckpoint", f"{command.sender} is not the checkpointer {whose}")

    if command.location is None:
        return _ceded(state, command.sender), ()

    ended = state.progress.step - 1
    if command.step is not None and command.step != ended:
        message = f"this is the model after step {command.step}, and the run's last epoch ended after step {ended}"
        raise CoordinatorError("InvalidCheckpoint", message)

    if not is_end_signed(state) and not state.config.checkpointers:
        message = f"no quorum has signed the model of step {state.progress.step - 1} yet, so this may not be the run's model"
        raise CoordinatorError("InvalidCheckpoint", message)

    location = _parsed(command.location)
    present = state.model.LLM.checkpoint.name
    name = _FOLLOWS.get((present, location.name))
    if name is None:
        raise CoordinatorError("InvalidCheckpoint", f"{location.name} cannot follow the checkpoint kind {present}")

    model = _with_checkpoint(state.model, Choice(name, location.settings))
    return replace(state, model=model, stored=present_end(state)), ()


def _ceded(state: CoordinatorState, sender: NodeIdentity) -> CoordinatorState:
    """Pass the duty on to the next slot.

    Only the slot that has the duty now may do this. Otherwise a slot that already passed it on could take it from its successor.
    Raises CoordinatorError (InvalidCheckpoint).
    """
    slot = state.slot_of(sender)
    if slot is None or slot != checkpointer_slot(state):
        raise CoordinatorError("InvalidCheckpoint", f"{sender} is not the one who stores this epoch's model now")

    return replace(state, epoch=replace(state.epoch, ceded=tuple(sorted({*state.epoch.ceded, slot}))))


def _parsed(location: object) -> Choice:
    """Parse a location received from a client and check its settings. Raises CoordinatorError (InvalidCheckpoint)."""
    try:
        choice = Choice.parse(location)
        table = CHECKPOINTS.get(choice.name)
        if table is None:
            raise CoordinatorError("InvalidCheckpoint", f"expected a Hub or Gcs location, got {choice.name}")
        settings = table.model_validate(choice.settings or {}).model_dump(exclude_none=True)
        empty = next((key for key in ("repo_id", "bucket") if settings.get(key) == ""), None)
        if empty is not None:
            raise CoordinatorError("InvalidCheckpoint", f"{empty} of a {choice.name} location must not be empty")
        return Choice(choice.name, settings)
    except ValidationError as error:
        raise CoordinatorError(
            "InvalidCheckpoint", f"the settings of {choice.name} are wrong: {error.errors()[0]['msg']}"
        ) from error
    except ValueError as error:
        raise CoordinatorError("InvalidCheckpoint", f"the location {error}") from error
