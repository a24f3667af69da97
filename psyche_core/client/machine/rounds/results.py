"""Results of other trainers: check announcements against the round, ask for payloads, and ask again after a failure.

- Before anything is fetched, an announcement must be for the share that the coordinator assigned to that slot, and carry the
  commitment that follows from it (F7) with its trainer's signature.
- Only the first result of a slot is fetched unasked. Two different results of one slot prove equivocation and go to the
  coordinator.
- A result is not refused because its payload bytes are known, from an earlier round or from another slot. Two honest results of
  zeros have equal bytes, and which of them is later differs between honest witnesses. A commitment names round, share and
  trainer, so equal bytes are different results; they are applied as often as the statements say. Whether bytes were copied is a
  question for verification.

Payloads are not looked into here.
"""

from __future__ import annotations

from collections.abc import Callable

from psyche_core.client.machine.actions import Action, FetchPayload, Notify, Send, Share
from psyche_core.client.machine.epoch import EpochNotes
from psyche_core.client.machine.rounds.round import Evidence, RoundRecord
from psyche_core.coordinator.commands import Equivocation, SignedResult
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry import events as telemetry
from psyche_core.types import NodeIdentity
from psyche_core.wire.messages import Result, commitment_hash, commitment_is_signed

Verify = Callable[[Result, bytes], bool]
"""(result, p2p key) -> whether that key signed the result's commitment."""


class ResultTracker:
    """Checks and fetches results for one client.

    instance: of the run, known from its first state. with_roots: whether the run's results have roots of deltas.
    max_payload_bytes: None until our model is open; nothing is fetched before.
    """

    def __init__(self, identity: NodeIdentity, *, verify: Verify | None) -> None:
        self.instance: bytes = bytes(32)
        self.with_roots: bool = False
        self.max_payload_bytes: int | None = None
        self._identity = identity
        self._verify = verify or self._signed

    def _signed(self, result: Result, p2p: bytes) -> bool:
        return commitment_is_signed(result, run=self.instance, p2p=p2p)

    def commitment(self, record: RoundRecord, *, share: Share, trainer: bytes, payload_hash: bytes) -> bytes:
        """The commitment of a share's result. trainer: the signer half of its identity. payload_hash: or `result_hash`."""
        return commitment_hash(
            self.instance,
            epoch=record.epoch,
            step=record.round.step,
            seed=record.round.seed,
            share=share,
            trainer=trainer,
            payload_hash=payload_hash,
        )

    def receive(self, notes: EpochNotes, *, slot: int, result: Result, now: float) -> list[Action]:
        """Handle a slot's announcement; an invalid one is ignored."""
        record = notes.records[result.height]
        if record.shares.get(slot) != result.share or result.step != record.round.step:
            return []
        if bool(result.roots) != self.with_roots:
            return []

        client = notes.clients[slot]
        expected = self.commitment(record, share=result.share, trainer=client.signer, payload_hash=result.committed_hash)
        if expected != result.commitment or not self._verify(result, client.p2p):
            return []

        known = record.candidates.get(slot, {})
        first = not known
        proof = [] if first or result.commitment in known else self._proof(notes, record, slot=slot, result=result, now=now)
        if self.max_payload_bytes is not None and result.payload_bytes > self.max_payload_bytes:
            return proof

        if record.add(slot, result) and first and not record.applied:
            return self.fetch(notes, record, result, client.p2p)

        return proof

    def _proof(self, notes: EpochNotes, record: RoundRecord, *, slot: int, result: Result, now: float) -> list[Action]:
        """Evidence against a trainer that signed two results for one share; returned once."""
        first = next(iter(record.candidates[slot].values()))
        if slot in record.evidence or first.committed_hash == result.committed_hash or slot == notes.slot:
            return []

        halves = [SignedResult(half.committed_hash, half.signature) for half in (first, result)]
        evidence = Equivocation(self._identity, notes.number, record.height, slot, halves[0], halves[1])
        record.evidence[slot] = Evidence(evidence, now)
        problem = f"client {notes.clients[slot].short} signed two results for step {result.step}; reported to the coordinator"
        return [Notify(telemetry.Problem("warning", problem)), Send(evidence)]

    def repeat_evidence(self, notes: EpochNotes, state: CoordinatorState, *, now: float, timeout: float) -> list[Action]:
        """Repeat proofs that were not answered for `timeout` seconds, unless the share is void: the server may be away.

        When it is back and the run continues, repeat them at once: after a few short rounds the old one can no longer be
        checked. Also for members already ejected by a proof about another round: each round's results are decided by its own
        proof.
        """
        actions: list[Action] = []
        proven = [record for record in notes.records.values() if record.evidence]
        if not proven:
            return actions

        now_in = (state.run_state, -1 if state.current_round is None else state.current_round.height)
        for record in proven:
            stored = state.round_at(record.height)
            if stored is None:
                continue  # no proof about a round that is no longer stored can be checked

            for slot, evidence in record.evidence.items():
                resumed = evidence.checked_in not in (None, now_in)
                evidence.checked_in = now_in
                if slot in stored.voided or evidence.answered:
                    continue
                if resumed or now - evidence.sent_at > timeout:
                    evidence.sent_at = now
                    actions.append(Send(evidence.command))
        return actions

    def fetch(self, notes: EpochNotes, record: RoundRecord, result: Result, source: bytes) -> list[Action]:
        """Request a payload that is neither here for this round nor on its way. source: p2p key of a peer that should have it.

        A payload from an earlier round is requested again, so that we and our transport keep it for this round too.
        """
        if self.max_payload_bytes is None:
            return []

        tag = notes.payloads.live(notes.tag(record.height))
        if notes.payloads.wants(result.payload_hash, tag=tag):
            return [FetchPayload(result.payload_hash, (source,), tag)]

        if notes.payloads.holds(result.payload_hash, tag=tag):
            record.payload_arrived(result.payload_hash, notes.payloads.valid, now=record.opened_at)
        return []

    def fetch_missing(self, notes: EpochNotes) -> list[Action]:
        """Request announced results that we lack (again): fetches fail, and some were announced before our model was open."""
        actions: list[Action] = []
        for record in [record for record in notes.records.values() if not record.applied]:
            for slot, known in record.candidates.items():
                if slot not in record.verified:
                    actions += self.fetch(notes, record, next(iter(known.values())), notes.clients[slot].p2p)
        return actions
