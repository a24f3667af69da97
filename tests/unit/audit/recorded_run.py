"""What two members of a run publish, made in a moment: every step has the same payloads, so nothing but the first is trained."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from psyche_core.config.run_config import load_run_file
from psyche_core.interfaces.data import Samples
from psyche_core.plugins import PluginRegistry
from psyche_core.storage.checkpoint_names import checkpoint_path
from psyche_core.training.build import build_trainer
from psyche_core.training.checkpoints.checkpoint import save_checkpoint
from psyche_core.training.checkpoints.journal.journal import LEAST_LIMIT, Journal
from psyche_core.training.checkpoints.journal.publishing import hold, publish
from psyche_core.training.checkpoints.journal_records import NO_DIGEST, AppliedRound, StoredResult
from psyche_core.training.checkpoints.manifest import CheckpointFacts
from psyche_core.training.trainer import Trainer
from psyche_core.types import BatchId, Decision
from psyche_core.wire.messages import commitment_hash, sign_commitment
from psyche_core.wire.signing import SecretKey

INSTANCE = hashlib.sha256(b"a recorded run").digest()
_KEYS = [SecretKey(bytes(31) + bytes((slot + 1,))) for slot in range(2)]


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore of the coordinator, after step `lost`, to the state of after step `to`, which is in the journal before."""

    lost: int
    to: int


class _Recorder:
    """A member that applies rounds. config: folder with state.toml."""

    def __init__(self, out: Path, config: Path) -> None:
        self.out, self.config = out, config
        self.run = load_run_file(config / "state.toml")
        self.trainer = self._built(config / "model")
        length = self.run.model.LLM.max_seq_len
        tokens = np.random.default_rng(7).integers(0, self.trainer.vocab_size, (2, length), dtype=np.uint16)
        samples = [Samples(each.tobytes(), 1, length, 2) for each in tokens]
        self.payloads = [self.trainer.train(slot + 1, each).payload for slot, each in enumerate(samples)]
        self.trainer.forget()
        self.history = NO_DIGEST
        self.restores = 0

    def _built(self, source: Path) -> Trainer:
        load = PluginRegistry.discover().load
        return build_trainer(registry_load=load, model_config=self.run.model, run_id=self.run.run_id, source=source)

    def play(self, journal: Journal, step: int) -> None:
        """Apply a step with both members' results, after a restore with the first one's."""
        epoch, height = divmod(step - 1, self.run.config.rounds_per_epoch)
        payloads = self.payloads[:1] if self.restores else self.payloads
        results = [_result(step, slot, epoch=epoch, height=height, payload=each) for slot, each in enumerate(payloads)]
        for result, payload in zip(results, payloads, strict=True):
            journal.add_result(result, payload)
        rate = self.trainer.rate_of(step)
        self.trainer.apply(step, payloads, own_accepted=False, learning_rate=rate)
        self.history = hashlib.sha256(self.history + bytes((self.restores,))).digest()
        pairs = tuple((each.commitment, each.payload_hash) for each in results)
        journal.add_applied(
            AppliedRound(epoch=epoch, height=height, step=step, learning_rate=rate, results=pairs, history=self.history)
        )

    def end_epoch(self, journal: Journal, step: int) -> None:
        """Save a checkpoint, start the journal again, and publish the one that ended."""
        epoch, height = divmod(step - 1, self.run.config.rounds_per_epoch)
        held, digest, name = hold(journal), self.trainer.full_digest(), self.run.run_id
        facts = CheckpointFacts(
            run_id=name,
            step=step,
            epoch=epoch,
            data_index=2 * step,
            digest=digest,
            instance=INSTANCE,
            decision=Decision(step, epoch, height, NO_DIGEST, self.history),
        )
        save_checkpoint(checkpoint_path(self.out / "checkpoint", name, step), facts, write=self.trainer.save)
        journal.begin(step, digest, 0, base_history=self.history)
        assert held is not None
        publish(held, self.out / "journals", name, instance=INSTANCE)

    def restore(self, journal: Journal, to: int) -> None:
        """Go back to the journal before and to the masters of a step in it, as a client of a restored coordinator does."""
        journal.sync()
        found = journal.read_earlier(lambda header, _: header.base_step < to)
        assert found is not None
        journal.rewind(to)
        base = found.header.base_step
        self.trainer.close()
        known = checkpoint_path(self.out / "checkpoint", self.run.run_id, base)
        self.trainer = self._built(known if base else self.config / "model")
        for each in found.rounds[: to - base]:
            payloads = [journal.payload(payload_hash) for payload_hash in each.payload_hashes]
            self.trainer.apply(each.step, payloads, own_accepted=False, learning_rate=each.learning_rate)
            self.history = each.history
        self.restores += 1


def record_run(out: Path, config: Path, *, steps: int, restore: Restore | None = None) -> None:
    """Write `journals` and `checkpoint` into a folder, as the first member of a testnet does.

    config: folder with state.toml. Epochs have rounds_per_epoch steps; the last one may be shorter.
    """
    member = _Recorder(out, config)
    name, length = member.run.run_id, member.run.config.rounds_per_epoch
    with Journal.open(out / "checkpoint", name, instance=INSTANCE, limit_bytes=LEAST_LIMIT) as journal:
        journal.begin(0, member.trainer.full_digest(), 0)
        step = 0
        while step < steps:
            step += 1
            member.play(journal, step)
            if step == steps or step % length == 0:
                member.end_epoch(journal, step)
            if restore is not None and step == restore.lost and not member.restores:
                step = restore.to
                member.restore(journal, step)
    member.trainer.close()


def _result(step: int, slot: int, *, epoch: int, height: int, payload: bytes) -> StoredResult:
    payload_hash, signer = hashlib.sha256(payload).digest(), bytes((slot,)) * 32
    share = (BatchId(2 * step + slot, 2 * step + slot),)
    commitment = commitment_hash(
        INSTANCE, epoch=epoch, step=step, seed=step, share=share, trainer=signer, payload_hash=payload_hash
    )
    return StoredResult(
        epoch=epoch,
        height=height,
        step=step,
        seed=step,
        slot=slot,
        share=share,
        commitment=commitment,
        payload_hash=payload_hash,
        signature=sign_commitment(_KEYS[slot], INSTANCE, commitment),
        trainer=_KEYS[slot].public,
        signer=signer,
    )
