"""The model as a whole: loading and storing it, whether members have the same, and what happens if none has it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelLoading:
    """Building and loading of the model starts; ModelLoaded reports the end.

    Attributes:
        model: its name in the run's configuration.
    """

    model: str


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    """The model is ready.

    Attributes:
        parameters: number of trainable values.
        seconds: wall time of building or loading.
        step: the last step whose results are in it, according to its checkpoint; None for the first model of a run.
    """

    parameters: int
    seconds: float
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """The state that a client restored from its own checkpoint folder.

    Attributes:
        checkpoint: step of the checkpoint, None without one.
        step: the last step in our masters, including those of the journal; None if nothing was found.
        due: the step of the run's masters.
        again: whether the folder was read before by this process, when the run's masters were others.
    """

    folder: str
    checkpoint: int | None
    step: int | None
    due: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class ModelSync:
    """We download the pieces in which our masters differ from the members' masters after `step`.

    Emitted at the start and repeatedly.

    Attributes:
        bytes_received: size of the finished pieces.
    """

    step: int
    pieces_done: int
    pieces_total: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class Resynced:
    """Our masters now equal those of the other members after `step`; each piece was verified."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class EpochDigest:
    """SHA-256 (hex) over all float32 parameters at the end of an epoch, after all its accepted results were applied."""

    epoch: int
    step: int
    sha256: str


@dataclass(frozen=True, slots=True)
class EpochSigned:
    """A quorum of the members signed the full digest (hex) of the masters after `step`: the run can return to it at any time."""

    step: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ReplicasDiffer:
    """A peer reported another digest for the same epoch end."""

    epoch: int
    ours: str
    theirs: str
    peer: str


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A complete checkpoint was saved at `path`."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class JournalPublished:
    """A journal of applied rounds was copied to `path`, for audits of the run.

    Attributes:
        first_step: the first step whose results are in it.
        last_step: the last one.
        path: the file.
        size: its length in bytes.
        seconds: how long copying took.
    """

    first_step: int
    last_step: int
    path: str
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointStored:
    """We stored the model after `step`, and the run now refers to it."""

    step: int
    location: str


@dataclass(frozen=True, slots=True)
class StateIsOlder:
    """The server continues the run from an older state than one that a member, or its own folder, knows.

    Attributes:
        epoch: the epoch in which the run continues.
        step: the next step to train.
        known_epoch: the epoch of the later state.
        known_step: the next step of the later state.
        member: first digits of the key of the member that says so; None if the server found the later state in its own folder.
        path: file with the state from which the run continues.
        later_path: file with the later state, if the server has it.
    """

    epoch: int
    step: int
    known_epoch: int
    known_step: int
    path: str
    member: str | None = None
    later_path: str | None = None


@dataclass(frozen=True, slots=True)
class WentBack:
    """No member had the model after `from_step`: the run continues after `to_step`, and trains the later samples again.

    The server tells of it, and each member that sees it: one that was away from the last step that it knew.

    Attributes:
        from_checkpoint: whether it continues with the model of the stored checkpoint, instead of a model that members have.
        by_owner: whether the run's owner asked for it, whatever members have; None if a member cannot know that.
        checkpoint: where that checkpoint is, for instance `Hub owner/name`; empty with a model that members have.
    """

    from_step: int
    to_step: int
    from_checkpoint: bool
    by_owner: bool | None = False
    checkpoint: str = ""


@dataclass(frozen=True, slots=True)
class ModelLost:
    """In a warmup no member had the model after `step`, or the model after an earlier epoch: the run waits for its owner.

    Attributes:
        away: first digits of the keys of members that trained in this run and are not here now, those of the last epoch first.
        ask_again: command with which the owner lets the run ask its members again, empty without one.
        begin_again: command that restarts the run from its stored checkpoint, empty if the server keeps no state.
        stored_step: step of the stored checkpoint, 0 for the run's beginning.
        state_dir: folder with the state from which the server continued the run, empty for a server that began it.
        known_step: next step of the latest state that the server has heard of, if it continued from an older one.
        later_path: file with that later state, if the server has it.
        to_owner: whether the owner is told, by the server. Otherwise a member tells its people, without the fields above.
    """

    step: int
    away: tuple[str, ...] = ()
    ask_again: str = ""
    begin_again: str = ""
    stored_step: int = 0
    state_dir: str = ""
    known_step: int | None = None
    later_path: str | None = None
    to_owner: bool = True


@dataclass(frozen=True, slots=True)
class ModelContested:
    """So few members offer the model after `step`, which no quorum signed, that they may be lying.

    Attributes:
        offering: number of members that offer the same model, at most.
        members: number of members of the epoch, this client included.
        signed_step: step of the newest epoch end that members signed, None without one. The owner can return the run to it.
        taken: whether this client took the model, because no other one is offered. Otherwise it waits for more members.
        starts: whether an epoch is to start with this model.
    """

    run_id: str
    step: int
    offering: int
    members: int
    signed_step: int | None
    taken: bool
    starts: bool
