"""What other members say, taken in: results, Finished, digests, wishes for models and offers of them; and payloads as they come.

Decided here: only members of the epoch are heard, by the key that signed; what is about rounds or epochs still to come waits,
bounded. Refuses to act on what it hears beyond asking for payloads and reporting proof of equivocation.
"""

from __future__ import annotations

from psyche_core.client.machine.buffers import ABOUT_A_ROUND
from psyche_core.client.machine.events import PayloadUnjudged
from psyche_core.client.machine.state import Standing
from psyche_core.telemetry import events as telemetry
from psyche_core.wire.messages import Finished, Message, ModelDigest, ModelOffer, ModelWanted, Result


def hear(me: Standing, origin: bytes, message: Message) -> None:
    """Take in a message whose envelope was verified. origin: p2p key of who signed it."""
    notes = me.notes
    height = message.height if isinstance(message, ABOUT_A_ROUND) else None
    known = notes is not None and message.epoch == notes.number
    if notes is None or not known or (height is not None and height not in notes.records):
        # A peer may hear of a round or an epoch before we do; transports deliver a message once, so it is kept.
        if notes is None or message.epoch > notes.number or (known and height is not None and height > notes.newest):
            me.early.hold(origin, message)
        return

    slot = notes.slots.get(origin)
    if slot is None or notes.slot is None:
        return

    match message:
        case Finished():
            notes.records[message.height].finished.setdefault(slot, me.now)
        case Result():
            me.do(*me.results.announced(notes, slot=slot, result=message, now=me.now))
        case ModelDigest():
            notes.digests.add(slot, message)
            notes.judge = True
        case ModelWanted():
            notes.generosity.want(slot, message.step)
        case ModelOffer():
            notes.repair.offered(slot, message)


def hear_early(me: Standing, epoch: int, height: int | None) -> None:
    """Take in what came before its round (height None: before its epoch)."""
    for origin, message in me.early.take(epoch, height):
        hear(me, origin, message)


def payload_checked(me: Standing, payload_hash: bytes, *, valid: bool, tag: int) -> None:
    """A payload is here until its tag expires; valid: it fits our parameter table."""
    if me.notes is not None:
        me.notes.inbox.checked(payload_hash, valid=valid, tag=tag)
        for record in me.notes.records.values():
            if payload_hash in record.announced:
                record.payload_arrived(payload_hash, me.notes.inbox.valid, now=me.now)


def payload_missing(me: Standing, payload_hash: bytes) -> None:
    """Nobody asked had a payload in time; it may be asked for again."""
    if me.notes is not None:
        me.notes.inbox.fetch_failed(payload_hash)


def payload_unjudged(me: Standing, event: PayloadUnjudged) -> None:
    """Our check failed on a payload. That is no verdict: we do not attest to it, and do not leave out what others accept.

    Where every member's check fails alike nobody attests, and the share is trained again. Where only ours does, the others
    accept the payload, and we get the masters from them as we do when we cannot have a payload.
    """
    if me.notes is not None:
        me.notes.inbox.check_failed(event.payload_hash)
        me.tell(telemetry.Problem("error", event.reason))


def ask_again(me: Standing) -> None:
    """Ask again for announced payloads that are not here, and for an answer to proofs."""
    if me.notes is not None:
        me.do(*me.results.fetch_missing(me.notes))
        repeat_evidence(me)


def repeat_evidence(me: Standing) -> None:
    """Send proofs again that the coordinator did not answer."""
    notes = me.notes
    if notes is not None and me.state is not None and notes.describes(me.state):
        me.do(*me.results.repeat_evidence(notes, me.state, now=me.now, patience=me.patience.evidence))
