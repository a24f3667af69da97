"""Checkpoint and journal give the masters of the last round, bit for bit, for real optimizers."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.builtin.hf_models import create_llama
from psyche_core.errors import ModelError, PayloadRejected
from psyche_core.hookspecs import ModelContext
from psyche_core.interfaces.model import Model
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.storage.checkpoint_names import checkpoint_path
from psyche_core.training.checkpoints.checkpoint import save_checkpoint
from psyche_core.training.checkpoints.journal.contents import Recovered
from psyche_core.training.checkpoints.journal.journal import Journal
from psyche_core.training.checkpoints.journal.replay import replay
from psyche_core.training.checkpoints.journal_records import AppliedRound, Header
from psyche_core.training.checkpoints.manifest import CheckpointFacts
from psyche_core.training.checkpoints.public_state import load_public_state
from psyche_core.training.trainer import Trainer
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.settings import DistroSettings
from tests.unit.training.journal_cases import INSTANCE, result
from tests.unit.training.trainer_cases import LLAMA, samples

BASE, LAST = 8, 30

Make = Callable[[Model], Optimizer]


def distro(*, compiled: bool, **settings: Any) -> Make:
    def make(model: Model) -> Optimizer:
        optimizer = DistroOptimizer(DistroSettings(weight_decay=0.1, compression_chunk=16, **settings), model, compiled=compiled)
        if optimizer.compiled != compiled:
            pytest.skip("the extra `fast` is not installed")
        return optimizer

    return make


OPTIMIZERS: dict[str, Make] = {
    "distro in torch": distro(compiled=False, quantize_1bit=True),
    "distro compiled": distro(compiled=True, quantize_1bit=True),
    "distro's values": distro(compiled=False, quantize_1bit=False),
    "distro with public state": distro(compiled=True, quantize_1bit=True, second_stage="rmsprop"),
    "adamw": lambda model: AdamW(AdamWSettings(weight_decay=0.1), model),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rate_at_first(step: int) -> float:
    return 0.003 / (1 + step / 7)


def rate_later(step: int) -> float:
    """A schedule that was changed meanwhile, or a cold start that is over."""
    return 0.5 / step


def build(make: Make, source: Path, rate: Callable[[int], float]) -> Trainer:
    model = create_llama(ModelContext(source=source, max_seq_len=16, seed=bytes(32), device="cpu"))
    optimizer = make(model)
    load_public_state(optimizer, source)
    return Trainer(model=model, optimizer=optimizer, learning_rate=rate, micro_batch_size=2)


class Run:
    """Three members, a journal of the first one's, and a checkpoint of step BASE; one result in five is not accepted."""

    def __init__(self, make: Make, folder: Path) -> None:
        source = folder / "source"
        source.mkdir()
        (source / "config.json").write_text(json.dumps(LLAMA))
        self.make, self.folder = make, folder
        self.checkpoint = checkpoint_path(folder, "a run", BASE)
        self.members = [build(make, source, rate_at_first) for _ in range(3)]
        self.digests: dict[int, bytes] = {}
        self._dice = random.Random(5)
        self._sent: dict[int, list[bytes]] = {}
        with Journal.open(folder, "a run", instance=INSTANCE, limit_bytes=2**30) as journal:
            journal.begin(0, self.members[0].full_digest(), 0)
            for step in range(1, LAST + 3):
                if step > 2:
                    self._apply(journal, step - 2)
                if step <= LAST:
                    self._train(journal, step)
                journal.sync()

    def _train(self, journal: Journal, step: int) -> None:
        self._sent[step] = [member.train(step, samples(10 * step + slot)).payload for slot, member in enumerate(self.members)]
        for slot, payload in enumerate(self._sent[step]):
            self.members[0].check(payload)
            journal.add_result(result(step, slot, payload), payload)

    def _apply(self, journal: Journal, step: int) -> None:
        accepted = [slot for slot in range(3) if self._dice.random() < 0.8]
        for number, member in enumerate(self.members):
            order = self._dice.sample(accepted, len(accepted))
            member.apply(step, [self._sent[step][slot] for slot in order], own_accepted=number in accepted)
        first = self.members[0]
        self.digests[step] = first.full_digest()
        results = [result(step, slot, self._sent[step][slot]) for slot in accepted]
        journal.add_applied(
            AppliedRound(
                epoch=0,
                height=step,
                step=step,
                learning_rate=first.rate_of(step),
                results=tuple((each.commitment, each.payload_hash) for each in results),
            )
        )
        if step == BASE:
            facts = CheckpointFacts(run_id="a run", step=step, epoch=0, data_index=0, digest=self.digests[step])
            save_checkpoint(self.checkpoint, facts, write=first.save)
            journal.begin(step, self.digests[step], 0)

    def restored(self) -> Trainer:
        """A trainer that another process would build from the checkpoint, with another schedule."""
        return build(self.make, self.checkpoint, rate_later)

    def journal(self) -> Journal:
        return Journal.open(self.folder, "a run", instance=INSTANCE, limit_bytes=2**30)


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    torch.set_num_threads(1)
    return Run(OPTIMIZERS["adamw"], tmp_path_factory.mktemp("run"))


def recover(journal: Journal) -> Recovered:
    found = journal.read(generation=0)
    assert found is not None
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_checkpoint_and_journal_give_the_masters_of_the_last_round(tmp_path: Path, name: str) -> None:
    run = Run(OPTIMIZERS[name], tmp_path)
    assert len(set(run.digests.values())) > LAST / 2, "the rounds change the masters"
    trainer = run.restored()
    assert trainer.full_digest() == run.digests[BASE]
    with run.journal() as journal:
        found = recover(journal)
        assert replay(trainer, found, until=17) == 17
        assert trainer.full_digest() == run.digests[17]
        assert replay(trainer, found, until=2**31, start=17) == LAST
    assert trainer.full_digest() == run.digests[LAST] == run.members[2].full_digest()


def test_what_is_replayed_goes_on_like_the_others(a_run: Run) -> None:
    """The next payloads of the others bring both to the same bits."""
    trainer, witness = a_run.restored(), a_run.restored()
    with a_run.journal() as journal:
        for each in (trainer, witness):
            replay(each, recover(journal), until=LAST)
    payload = witness.train(LAST + 1, samples(77)).payload
    witness.apply(LAST + 1, [payload], own_accepted=True)
    trainer.apply(LAST + 1, [payload], own_accepted=False)
    assert trainer.full_digest() == witness.full_digest()


def test_the_recorded_rate_is_used_and_not_the_schedules(a_run: Run) -> None:
    trainer = a_run.restored()
    with a_run.journal() as journal:
        found = recover(journal)
        rates = [each.learning_rate for each in found.rounds]
        assert rates == [rate_at_first(step + 2) for step in range(BASE + 1, LAST + 1)]
        changed = replace(found, rounds=tuple(replace(each, learning_rate=rate_later(each.step)) for each in found.rounds))
        assert replay(trainer, changed, until=LAST) == LAST
    assert trainer.full_digest() != a_run.digests[LAST]


def test_nothing_is_applied_where_nothing_is_asked_for(a_run: Run) -> None:
    trainer = a_run.restored()
    with a_run.journal() as journal:
        assert replay(trainer, recover(journal), until=BASE) == BASE
        assert replay(trainer, recover(journal), until=0) == BASE
    assert trainer.full_digest() == a_run.digests[BASE]


def test_another_model_or_step_is_refused_before_anything_is_applied(a_run: Run) -> None:
    trainer = build(a_run.make, a_run.folder / "source", rate_at_first)
    before = trainer.full_digest()
    with a_run.journal() as journal:
        found = recover(journal)
        with pytest.raises(ModelError, match="begins with another model of step 8"):
            replay(trainer, found, until=LAST)
        for start in (BASE - 1, LAST + 1):
            with pytest.raises(ModelError, match=f"covers steps 8 to 30, but the model is that of step {start}"):
                replay(trainer, found, until=LAST, start=start)
    assert trainer.full_digest() == before


def test_a_payload_that_the_optimizer_refuses_is_one_sentence() -> None:
    class Refusing:
        def apply(self, step: int, payloads: Sequence[bytes], *, own_accepted: bool, learning_rate: float | None = None) -> None:
            message = f"{len(payloads)} of {step}, {own_accepted}, {learning_rate}"
            raise PayloadRejected(message)

        def full_digest(self) -> bytes:
            return hashlib.sha256(b"").digest()

    one = AppliedRound(epoch=0, height=1, step=1, learning_rate=0.25, results=((b"c" * 32, b"p" * 32),))
    header = Header(instance=INSTANCE, generation=0, base_step=0, base_digest=hashlib.sha256(b"").digest())
    found = Recovered(header=header, rounds=(one,), pending=(), payload=lambda _: b"bytes")
    with pytest.raises(ModelError, match=r"a result of step 1 in the journal does not fit the model: 1 of 1, False, 0\.25"):
        replay(Refusing(), found, until=1)
