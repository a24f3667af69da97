"""A coordinator was restored from an older state: the same steps are in journals of two histories, and nobody lied."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from psyche_core.audit.auditing import AuditRequest, Signed, audit
from psyche_core.audit.finding import find
from psyche_core.audit.report import AuditReport
from psyche_core.config.run_config import load_run_file
from psyche_core.errors import InputError
from psyche_core.plugins import PluginRegistry
from psyche_core.storage.checkpoint_names import checkpoint_path
from psyche_core.testing.tiny_models import LLAMA
from psyche_core.training.checkpoints.journal_records import NO_DIGEST, Header
from psyche_core.training.checkpoints.manifest import read_manifest
from tests.unit.audit.forgery import Item, forge
from tests.unit.audit.recorded_run import INSTANCE, Restore, record_run

RUN = """
run_id = "restored"
[config]
warmup_time = 60
cooldown_time = 1
max_round_train_time = 60
round_witness_time = 2
epoch_time = 600
rounds_per_epoch = 4
total_steps = 12
init_min_clients = 2
min_clients = 2
witness_nodes = 0
global_batch_size_start = 2
global_batch_size_end = 2
global_batch_size_warmup_tokens = 0
verification_percent = 0
waiting_for_members_extra_time = 1
[model.LLM]
architecture = "HfAuto"
data_type = "Pretraining"
max_seq_len = 16
cold_start_warmup_steps = 0
checkpoint = { Hub = { repo_id = "model" } }
data_location = "Dummy"
lr_schedule = { Cosine = { base_lr = 2e-2, warmup_init_lr = 0.0, warmup_steps = 2, final_lr = 1e-3, total_steps = 12 } }
optimizer = { Distro = { compression_topk = 8, compression_chunk = 16, quantize_1bit = true } }
"""
LEFT = "left by a restore of the coordinator or a return, not counted"


@dataclass(frozen=True)
class Recorded:
    """first: journal of steps 1 to 4. left, again: of steps 5 to 8, which part after step 6. last: of 9 to 12."""

    folder: Path
    first: Path
    left: Path
    again: Path
    last: Path

    def audit(
        self,
        *sources: Path,
        until: int | None = None,
        histories: Mapping[int, bytes] | None = None,
        out: Path | None = None,
        checkpoint: Path | None = None,
    ) -> AuditReport:
        signed = Signed(instance=INSTANCE, ends={}, decisions={}, source="the server", histories=histories or {})
        request = AuditRequest(
            sources=sources or (self.folder / "journals",),
            run=load_run_file(self.folder / "state.toml"),
            base=self.folder,
            cache=self.folder / "cache",
            until=until,
            out=out,
            checkpoint=checkpoint,
            signed=None if histories is None else signed,
        )
        return audit(request, PluginRegistry.discover().load)

    @property
    def saved(self) -> Path:
        """Folder with the checkpoints."""
        return self.folder / "checkpoint"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("restored")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(dict(LLAMA)))
    (folder / "state.toml").write_text(RUN)
    record_run(folder, folder, steps=12, restore=Restore(lost=9, to=6))
    return folder


@pytest.fixture
def recorded(original: Path, tmp_path: Path) -> Recorded:
    folder = tmp_path / "run"
    shutil.copytree(original, folder)
    segments = find([folder / "journals"]).segments
    first, last = (next(each for each in segments if each.base_step == base) for base in (0, 8))
    again = next(each for each in segments if each.base_step == 4 and each.rounds[-1].history == last.header.base_history)
    left = next(each for each in segments if each.base_step == 4 and each is not again)
    return Recorded(folder, first.path, left.path, again.path, last.path)


def without_base_histories(recorded: Recorded) -> None:
    """As the first journals of this version are."""

    def change(item: Item) -> Item:
        return replace(item, base_history=NO_DIGEST) if isinstance(item, Header) else item

    for path in (recorded.first, recorded.left, recorded.again, recorded.last):
        forge(path, change)


def test_both_journals_of_the_same_steps_are_published_under_names_of_their_own(recorded: Recorded) -> None:
    names = sorted(path.name for path in (recorded.folder / "journals").iterdir())
    assert [re.sub(r"-[0-9a-f]{8}\.", "-HISTORY.", re.sub(r"-[0-9a-f]{16}-", "-", name)) for name in names] == [
        "restored-g0-steps1-4-HISTORY.journal",
        "restored-g0-steps5-8-HISTORY.journal",
        "restored-g0-steps5-8-HISTORY.journal",
        "restored-g0-steps9-12-HISTORY.journal",
    ]


def test_the_history_that_the_newest_rounds_continue_is_verified_and_the_other_is_named(recorded: Recorded) -> None:
    manifest = read_manifest(checkpoint_path(recorded.saved, "restored", 12))
    assert manifest is not None
    report = recorded.audit()
    assert (report.verified, report.last_step, report.digest) == (True, 12, manifest.digest)
    (note,) = report.notes
    assert note.startswith(f"{recorded.left}: steps 7 to 8 are of another history than the newest rounds, in {recorded.last}")
    assert note.endswith(LEFT)


def test_the_model_of_a_step_is_that_of_the_history_that_goes_on(recorded: Recorded) -> None:
    ours = recorded.audit(recorded.first, recorded.again, until=7).digest
    theirs = recorded.audit(recorded.first, recorded.left, until=7).digest
    assert ours != theirs
    assert recorded.audit(until=7).digest == ours
    assert recorded.audit(recorded.left, recorded.last, recorded.first, recorded.again, until=7).digest == ours


@pytest.mark.parametrize("until", [7, 8, None])
def test_what_the_run_has_left_does_not_stand_in_for_a_journal_that_is_missing(recorded: Recorded, until: int | None) -> None:
    recorded.again.unlink()
    with pytest.raises(
        InputError, match=f"no journal has the steps 5 to 8.*{re.escape(str(recorded.left))}: steps 5 to 8.*{LEFT}"
    ):
        recorded.audit(until=until)


def test_of_two_histories_that_are_equally_new_none_is_picked(recorded: Recorded) -> None:
    recorded.last.unlink()
    with pytest.raises(InputError, match=r"are of two histories of the run, and equally new \(step 8\).*with --until 6"):
        recorded.audit()
    with pytest.raises(InputError, match="equally new"):
        recorded.audit(until=7)
    report = recorded.audit(until=6)
    assert report.digest == recorded.audit(recorded.first, recorded.again, until=6).digest
    for one, other in ((recorded.left, recorded.again), (recorded.again, recorded.left)):
        (segment,) = find([one]).segments
        report = recorded.audit(histories={8: segment.rounds[-1].history})
        assert report.digest == recorded.audit(recorded.first, one).digest
        assert report.notes[0].startswith(f"{other}: steps 7 to 8 are of another history than the newest rounds, which the coord")
    with pytest.raises(InputError, match="no journal is of the run's history"):
        recorded.audit(recorded.left, histories={8: bytes(31) + b"1", 4: bytes(31) + b"2"})


def test_a_shorter_history_is_told_though_it_may_be_the_run_s(recorded: Recorded) -> None:
    """What a restored coordinator has decided so far: until it has come further, only the server can say so."""
    (left,) = find([recorded.left]).segments
    report = recorded.audit(histories={8: left.rounds[-1].history})
    assert report.digest == recorded.audit(recorded.first, recorded.left).digest
    assert [note.partition(":")[0] for note in report.notes] == [
        str(each.path) for each in find([recorded.folder / "journals"]).segments if each.path in (recorded.again, recorded.last)
    ]


def test_journals_that_do_not_say_the_history_of_their_base_are_linked_by_checkpoints(recorded: Recorded) -> None:
    without_base_histories(recorded)
    for until in (None, 7):
        with pytest.raises(InputError, match=f"and nothing says which of them {re.escape(str(recorded.last))} continues"):
            recorded.audit(until=until)
    expected = recorded.audit(recorded.first, recorded.again, until=7).digest
    report = recorded.audit(recorded.folder / "journals", recorded.saved, until=7)
    assert (report.verified, report.digest) == (True, expected)


def test_it_is_told_where_no_history_says_what_the_newest_rounds_continue(recorded: Recorded) -> None:
    without_base_histories(recorded)
    recorded.again.unlink()
    assert "no history says that the newest rounds, in" in recorded.audit(until=7).notes[0]
    difference = recorded.audit().difference
    assert difference is not None
    assert difference.step == 8


def test_a_checkpoint_of_the_history_that_was_left_is_not_compared_and_not_begun_with(recorded: Recorded) -> None:
    out = recorded.folder / "left"
    recorded.audit(recorded.first, recorded.left, out=out)
    report = recorded.audit(recorded.folder / "journals", out)
    assert report.verified
    assert f"the checkpoint {out}, of step 8, is of another history than the newest rounds: {LEFT}" in report.notes
    with pytest.raises(InputError, match=f"of step 8, is of another history than the newest rounds.*--checkpoint.*{LEFT}"):
        recorded.audit(checkpoint=out)
