"""Converts coordinator states to images and back. An image is the whole state as one array of bytes of a fixed size.

Every implementation of the coordinator (this one, the on-chain program) writes the same bytes for the same state, so states can
be compared by comparing images. The layout is a table (`layout`). Everything is checked in both directions, and
`encode(decode(image)) == image` for every image that is accepted. Nothing is repaired or guessed. This module does not check
whether `apply` could have produced a state.
"""

from __future__ import annotations

import re
from itertools import pairwise

from psyche_core.coordinator.canonical_image.kinds import FieldError, Path, dotted, expect_order, offset_of
from psyche_core.coordinator.canonical_image.layout import HEADER, IMAGE, SIZE, VERSION
from psyche_core.coordinator.state import CoordinatorState, OpenChallenge, Round
from psyche_core.errors import WireError
from psyche_core.types import MAX_CLIENTS, BatchId, NodeIdentity
from psyche_core.verification.drawing import TIE_BREAKERS

__all__ = ["SIZE", "VERSION", "decode", "encode", "offset"]


def encode(state: CoordinatorState) -> bytes:
    """Return the image of a state, SIZE bytes.

    Raises ValueError with one sentence if the state exceeds a capacity of the layout, or if `apply` could not work with it.
    """
    image = IMAGE.write(state)
    _check(state)
    return image


def decode(image: bytes, *, earlier: tuple[bytes, CoordinatorState] | None = None) -> CoordinatorState:
    """Return the state of an image. Raises only WireError, which names the field and its byte, whatever `image` contains.

    earlier: another image and what `decode` returned for it. The result is the same as without; only what differs is read.
    """
    if len(image) >= HEADER.size:
        _read_header(image)
    if len(image) != SIZE:
        message = f"expected an image of {SIZE} bytes (layout version {VERSION}), got {len(image)}"
        raise WireError(message)

    try:
        if earlier is None:
            state: CoordinatorState = IMAGE.read(image, 0)
        else:
            state = IMAGE.read_again(image, 0, earlier=earlier[0], value=earlier[1])
        _check(state)
    except FieldError as error:
        raise _wire_error(error) from error

    return state


def offset(field: str) -> int:
    """Return the byte of the image at which a field such as `epoch.rounds[2].seed` starts. Raises KeyError if unknown."""
    path: Path = tuple(int(step) if step.isdecimal() else step for step in re.findall(r"\w+", field))
    return offset_of(IMAGE, path)


def _read_header(image: bytes) -> None:
    """Raise WireError for the bytes of another program or version. This comes before the size check, for a better message."""
    try:
        HEADER.read(image, 0)
    except FieldError as error:
        raise _wire_error(error) from error


def _wire_error(error: FieldError) -> WireError:
    return WireError(f"{dotted(error.path)} at byte {offset_of(IMAGE, error.path) + error.byte}: {error.text}")


def _check(state: CoordinatorState) -> None:
    """Check conditions between fields on which functions on a state rely. Raises FieldError."""
    if not state.run_id:
        raise FieldError("expected a name, got nothing", "run_id")

    epoch = state.epoch
    _check_signers([client.id for client in epoch.clients], "epoch", "clients")
    _check_slots(epoch.ready, len(epoch.clients), "epoch", "ready")
    _check_slots(epoch.ceded, len(epoch.clients), "epoch", "ceded")
    _check_slots(epoch.lacking, len(epoch.clients), "epoch", "lacking")
    for place, (earlier, later) in enumerate(pairwise(epoch.rounds), start=1):
        if later.height != earlier.height + 1:
            text = f"expected consecutive heights, got {later.height} after {earlier.height}"
            raise FieldError(text, "epoch", "rounds", place, "height")
    for place, stored in enumerate(epoch.rounds):
        clients = MAX_CLIENTS if epoch.unplayed else len(epoch.clients)  # unplayed: rounds of another epoch, with other clients
        _check_round(stored, clients, "epoch", "rounds", place)
    places = [(one.height, one.trainer) for one in epoch.challenges]
    expect_order(places, "challenges in ascending order of their rounds and trainers", "epoch", "challenges")
    for place, challenge in enumerate(epoch.challenges):
        _check_challenge(challenge, len(epoch.clients), "epoch", "challenges", place)
    _check_signers(state.pending, "pending")
    _check_intervals(state.requeue, "requeue")
    expect_order((account.signer for account in state.accounts), "signers in ascending order", "accounts")
    _check_intervals(state.stored.queue, "stored", "queue")
    for place, end in enumerate(state.ends):
        _check_intervals(end.queue, "ends", place, "queue")
    expect_order((end.step for end in state.ends), "ends in ascending order of their steps", "ends")
    signers = [entry.signer for entry in state.unready]
    if len(signers) != len(set(signers)):
        raise FieldError("expected each signer once", "unready")


def _check_round(stored: Round, clients: int, *path: str | int) -> None:
    _check_slots(stored.slots, clients, *path, "slots")
    _check_slots(stored.voided, clients, *path, "voided")
    _check_slots(stored.recomputing, clients, *path, "recomputing")
    _check_intervals(stored.batches, *path, "batches")
    stated: set[int] = set()
    for place, statement in enumerate(stored.statements):
        if statement.index >= clients or statement.index in stated:
            text = f"expected one statement for a slot and {clients} slots, got another for slot {statement.index}"
            raise FieldError(text, *path, "statements", place, "index")

        stated.add(statement.index)


def _check_challenge(challenge: OpenChallenge, clients: int, *path: str | int) -> None:
    named = (challenge.trainer, challenge.verifier)
    if max(named) >= clients:
        raise FieldError(f"expected slots of the epoch, which has {clients}, got {max(named)}", *path)
    _check_intervals(challenge.share, *path, "share")
    for name, slots, most in (
        ("judges", challenge.judges, TIE_BREAKERS),
        ("missed", challenge.missed, TIE_BREAKERS),
        ("roots", tuple(root.slot for root in challenge.roots), 1 + TIE_BREAKERS),
    ):
        expect_order(slots, "slots in ascending order", *path, name)
        if len(slots) > most or (slots and slots[-1] >= clients):
            raise FieldError(f"expected at most {most} slots of the epoch, which has {clients}, got {slots}", *path, name)


def _check_slots(slots: tuple[int, ...], clients: int, *path: str | int) -> None:
    if slots and slots[-1] >= clients:
        raise FieldError(f"expected slots of the epoch, which has {clients}, got {slots[-1]}", *path, byte=slots[-1] // 8)


def _check_signers(identities: tuple[NodeIdentity, ...] | list[NodeIdentity], *path: str | int) -> None:
    seen: set[bytes] = set()
    for place, identity in enumerate(identities):
        if identity.signer in seen:
            raise FieldError(f"expected each signer once, got {identity.signer.hex()} again", *path, place)

        seen.add(identity.signer)


def _check_intervals(intervals: tuple[BatchId, ...], *path: str | int) -> None:
    for place, (earlier, later) in enumerate(pairwise(intervals), start=1):
        if later.first <= earlier.last:
            raise FieldError(f"expected ascending, disjoint intervals, got {later} after {earlier}", *path, place)
