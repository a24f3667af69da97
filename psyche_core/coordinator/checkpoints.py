"""Where the next members load the model from, and who may say so.

Decided (F9): one client per epoch, elected by the seed of the epoch's last round among those still healthy, and only between
that epoch's cooldown and the next epoch's warmup. The kinds follow the reference (2.2, 2.7, 2.11): after an epoch members load
from peers; when no peer of the old epoch is left, or after a pause, from the hub again.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import ValidationError

from psyche_core.coordinator.commands import Checkpoint
from psyche_core.coordinator.committee import selection
from psyche_core.coordinator.rounds import Outcome, active_round
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import CoordinatorError
from psyche_core.run_config import CHECKPOINTS, Choice, ModelConfig
from psyche_core.types import RunState

_TO_PEERS = {"Hub": "P2P", "Dummy": "P2P", "Gcs": "P2PGcs"}
_TO_HUB = {"P2P": "Hub", "P2PGcs": "Gcs"}
_FOLLOWS = {
    ("P2P", "Hub"): "P2P",
    ("P2P", "Gcs"): "P2PGcs",
    ("P2PGcs", "Gcs"): "P2PGcs",
    ("P2PGcs", "Hub"): "P2P",
    ("Hub", "Hub"): "Hub",
    ("Gcs", "Gcs"): "Gcs",
}
_OPEN = (RunState.Cooldown, RunState.WaitingForMembers, RunState.Paused, RunState.Finished)


def loaded_from_peers(model: ModelConfig) -> ModelConfig:
    """The model's configuration after an epoch: members of the epoch share what they trained."""
    return _renamed(model, _TO_PEERS)


def loaded_from_hub(model: ModelConfig) -> ModelConfig:
    """The model's configuration when nobody is left who could share it."""
    return _renamed(model, _TO_HUB)


def _renamed(model: ModelConfig, names: dict[str, str]) -> ModelConfig:
    present = model.LLM.checkpoint
    return _with_checkpoint(model, Choice(names.get(present.name, present.name), present.settings))


def _with_checkpoint(model: ModelConfig, checkpoint: Choice) -> ModelConfig:
    return model.model_copy(update={"LLM": model.LLM.model_copy(update={"checkpoint": checkpoint})})


def checkpointer_slot(state: CoordinatorState) -> int | None:
    """The slot that stores this epoch's model: the first healthy one in the last round's draw; None when there is none."""
    last = state.current_round
    if last is None:
        return None

    healthy = set(state.healthy_slots)
    order = (last.slots[rank] for rank in selection(state, last).witness_order())
    return next((slot for slot in order if slot in healthy), None)


def checkpoint(state: CoordinatorState, command: Checkpoint) -> Outcome:
    """Follow the epoch's checkpointer to another location, a Hub or Gcs choice (or its table).

    Raises CoordinatorError (InvalidRunState, NoActiveRound, InvalidCheckpoint).
    """
    if state.run_state not in _OPEN:
        message = f"checkpoints are stored after an epoch's rounds, the run is in {state.run_state.name}"
        raise CoordinatorError("InvalidRunState", message)

    active_round(state)
    slot = state.slot_of(command.sender)
    if slot is None or slot != checkpointer_slot(state):
        raise CoordinatorError("InvalidCheckpoint", f"{command.sender} is not the checkpointer of this epoch")

    location = _parsed(command.location)
    present = state.model.LLM.checkpoint.name
    name = _FOLLOWS.get((present, location.name))
    if name is None:
        raise CoordinatorError("InvalidCheckpoint", f"{location.name} cannot follow the checkpoint kind {present}")

    return replace(state, model=_with_checkpoint(state.model, Choice(name, location.settings))), ()


def _parsed(location: object) -> Choice:
    """A location from outside, with its settings checked."""
    try:
        choice = Choice.parse(location)
        table = CHECKPOINTS.get(choice.name)
        if table is None:
            raise CoordinatorError("InvalidCheckpoint", f"expected a Hub or Gcs location, got {choice.name}")
        return Choice(choice.name, table.model_validate(choice.settings or {}).model_dump(exclude_none=True))
    except ValidationError as error:
        raise CoordinatorError(
            "InvalidCheckpoint", f"the settings of {choice.name} are wrong: {error.errors()[0]['msg']}"
        ) from error
    except ValueError as error:
        raise CoordinatorError("InvalidCheckpoint", f"the location {error}") from error
