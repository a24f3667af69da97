"""What two members of a run publish, made in a moment: every step has the same payloads, so nothing but the first is trained."""

from __future__ import annotations

import hashlib
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
from psyche_core.training.checkpoints.journal_records import AppliedRound, StoredResult
from psyche_core.training.checkpoints.manifest import CheckpointFacts
from psyche_core.types import BatchId
from psyche_core.wire.messages import commitment_hash, sign_commitment
from psyche_core.wire.signing import SecretKey

INSTANCE = hashlib.sha256(b"a recorded run").digest()
_KEYS = [SecretKey(bytes(31) + bytes((slot + 1,))) for slot in range(2)]


def record_run(out: Path, config: Path, *, steps: int) -> None:
    """Write `journals` and `checkpoint` into a folder, as the first member of a testnet does.

    config: folder with state.toml. Epochs have rounds_per_epoch steps; the last one may be shorter.
    """
    run = load_run_file(config / "state.toml")
    trainer = build_trainer(
        registry_load=PluginRegistry.discover().load, model_config=run.model, run_id=run.run_id, source=config / "model"
    )
    length = run.model.LLM.max_seq_len
    tokens = np.random.default_rng(7).integers(0, trainer.vocab_size, (2, length), dtype=np.uint16)
    payloads = [trainer.train(slot + 1, Samples(each.tobytes(), 1, length, 2)).payload for slot, each in enumerate(tokens)]
    trainer.forget()
    with Journal.open(out / "checkpoint", run.run_id, instance=INSTANCE, limit_bytes=LEAST_LIMIT) as journal:
        journal.begin(0, trainer.full_digest(), 0)
        for step in range(1, steps + 1):
            epoch, height = divmod(step - 1, run.config.rounds_per_epoch)
            results = [_result(step, slot, epoch=epoch, height=height, payload=each) for slot, each in enumerate(payloads)]
            for result, payload in zip(results, payloads, strict=True):
                journal.add_result(result, payload)
            pairs = tuple((each.commitment, each.payload_hash) for each in results)
            rate = trainer.rate_of(step)
            trainer.apply(step, payloads, own_accepted=False, learning_rate=rate)
            journal.add_applied(AppliedRound(epoch=epoch, height=height, step=step, learning_rate=rate, results=pairs))
            if step == steps or height + 1 == run.config.rounds_per_epoch:
                held, digest = hold(journal), trainer.full_digest()
                facts = CheckpointFacts(
                    run_id=run.run_id, step=step, epoch=epoch, data_index=2 * step, digest=digest, instance=INSTANCE
                )
                save_checkpoint(checkpoint_path(out / "checkpoint", run.run_id, step), facts, write=trainer.save)
                journal.begin(step, digest, 0)
                assert held is not None
                publish(held, out / "journals", run.run_id, instance=INSTANCE)
    trainer.close()


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
