"""Receive what other members send: results, Finished, digests, requests for models and offers of them; and payloads.

Only members of the epoch count, identified by the key that signed. Messages about rounds or epochs to come wait in a bounded
buffer. The only reactions here are to ask for payloads and to report proof of equivocation.
"""

from __future__ import annotations

from psyche_core.client.machine.buffers import ABOUT_A_ROUND, MAX_EARLY_EPOCHS
from psyche_core.client.machine.epoch import EpochNotes
from psyche_core.client.machine.events import PayloadCheckFailed
from psyche_core.client.machine.state import MachineState
from psyche_core.telemetry import events as telemetry
from psyche_core.wire.messages import Finished, Message, ModelDigest, ModelOffer, ModelWanted, Opening, Result


def receive(client: MachineState, origin: bytes, message: Message) -> None:
    """Handle a message whose envelope was verified. origin: p2p key of the signer."""
    notes = client.notes
    if notes is None or not _is_current(notes, message):
        if notes is None or _may_come(notes, message):
            _buffer(client, origin, message)
        return

    slot = notes.slots.get(origin)
    if slot is None or notes.slot is None:
        return

    match message:
        case Finished():
            notes.records[message.height].finished.setdefault(slot, client.now)
        case Result():
            client.emit(*client.results.receive(notes, slot=slot, result=message, now=client.now))
        case ModelDigest():
            notes.digests.add(slot, message)
            notes.compare_due = True
        case ModelWanted():
            notes.snapshot_requests.add(slot, message.step, now=client.now)
        case ModelOffer():
            notes.resync.add_offer(slot, message)
        case Opening():
            notes.duties.announced(slot, message)


def _is_current(notes: EpochNotes, message: Message) -> bool:
    """Whether a message is about our epoch, or about one of its rounds that we know.

    A digest of an epoch's end names its last round's seed, which we may not know yet: `DigestTracker` compares it later.
    """
    if message.epoch != notes.number:
        return False
    if isinstance(message, ABOUT_A_ROUND):
        record = notes.records.get(message.height)
        return record is not None and record.round.seed == message.seed

    return message.seed == notes.seed or (isinstance(message, ModelDigest) and message.ended)


def _may_come(notes: EpochNotes, message: Message) -> bool:
    """Whether we may still enter what a message is about: a peer may know a round or an epoch before we do.

    Transports deliver a message once, so it is kept. Another seed may be that of the next epoch with this number (an abandoned
    warmup does not use the number up), or of the same round in the history of a restored coordinator.
    """
    if message.epoch != notes.number:
        return message.epoch > notes.number

    return not isinstance(message, ABOUT_A_ROUND) or message.height > notes.newest or message.height in notes.records


def _buffer(client: MachineState, origin: bytes, message: Message) -> None:
    """Keep a message that came too early. Without a state everything is kept that there is room for."""
    state = client.state
    if state is not None and message.epoch > state.progress.epoch + MAX_EARLY_EPOCHS:
        return

    expected = () if state is None else (*client.members, *state.pending)
    client.early.add(origin, message, member=any(member.p2p == origin for member in expected))


def receive_early(client: MachineState, epoch: int, height: int | None) -> None:
    """Handle messages that came before their round (height None: before their epoch)."""
    for origin, message in client.early.take(epoch, height):
        receive(client, origin, message)


def payload_checked(client: MachineState, payload_hash: bytes, *, valid: bool, tag: int) -> None:
    """A payload is here until its tag expires; valid: whether it fits our parameter table."""
    if client.notes is not None:
        client.notes.payloads.checked(payload_hash, valid=valid, tag=tag)
        for record in client.notes.records.values():
            if payload_hash in record.announced:
                record.payload_arrived(payload_hash, client.notes.payloads.valid, now=client.now)


def payload_missing(client: MachineState, payload_hash: bytes) -> None:
    """No peer that was asked sent a payload in time; it may be requested again."""
    if client.notes is not None:
        client.notes.payloads.fetch_failed(payload_hash)


def payload_check_failed(client: MachineState, event: PayloadCheckFailed) -> None:
    """Our check failed on a payload, so its validity is unknown: we neither attest to it nor omit what others accept.

    If every member's check fails, nobody attests, and the share is trained again. If only ours fails, the others accept the
    payload, and we get the masters from them, as when we cannot get a payload.
    """
    if client.notes is not None:
        client.notes.payloads.check_failed(event.payload_hash)
        client.notify(telemetry.Problem("error", event.reason))


def retry_requests(client: MachineState) -> None:
    """Request announced payloads that are missing again, and repeat unanswered proofs."""
    if client.notes is not None:
        client.emit(*client.results.fetch_missing(client.notes))
        repeat_evidence(client)


def repeat_evidence(client: MachineState) -> None:
    """Repeat proofs that the coordinator did not answer."""
    notes = client.notes
    if notes is not None and client.state is not None and notes.describes(client.state):
        client.emit(*client.results.repeat_evidence(notes, client.state, now=client.now, timeout=client.timeouts.evidence))
