"""A real run of two members is audited from what they published; then each thing that an audit checks is made wrong once."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner

import psyche_core as psyche
from psyche_core.audit.auditing import AuditRequest
from psyche_core.audit.auditing import audit as run_audit
from psyche_core.audit.finding import find
from psyche_core.audit.report import AuditReport
from psyche_core.audit.segments import Segment
from psyche_core.cli import main
from psyche_core.cli.commands.audit import signed_in
from psyche_core.config.run_config import load_run_file
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.plugins import PluginRegistry
from psyche_core.storage.checkpoint_names import checkpoint_path
from psyche_core.testing.tiny_models import LLAMA
from psyche_core.training.checkpoints.journal_records import NO_DIGEST, AppliedRound, StoredResult
from psyche_core.training.checkpoints.manifest import read_manifest
from psyche_core.wire.messages import commitment_hash, sign_commitment
from psyche_core.wire.signing import SecretKey
from tests.unit.audit.forgery import Item, forge, items_of, write_items

STEPS, EPOCH = 8, 4
RUN = f"""
run_id = "audited"
[config]
warmup_time = 60
cooldown_time = 5
max_round_train_time = 60
round_witness_time = 2
epoch_time = 600
rounds_per_epoch = {EPOCH}
total_steps = {STEPS}
init_min_clients = 2
min_clients = 2
witness_nodes = 0
global_batch_size_start = 4
global_batch_size_end = 4
global_batch_size_warmup_tokens = 0
verification_percent = 0
waiting_for_members_extra_time = 1
[model.LLM]
architecture = "HfAuto"
data_type = "Pretraining"
max_seq_len = 16
cold_start_warmup_steps = 0
checkpoint = {{ Hub = {{ repo_id = "model" }} }}
data_location = "Dummy"
lr_schedule = {{ Cosine = {{ base_lr = 2e-2, warmup_init_lr = 0.0, warmup_steps = 2, final_lr = 1e-3, total_steps = 8 }} }}
optimizer = {{ Distro = {{ compression_topk = 8, compression_chunk = 16, quantize_1bit = true }} }}
"""
KEY = SecretKey(bytes(31) + b"\1")
"""Of the first member, so that tests can sign in its name."""


@dataclass(frozen=True)
class Played:
    """A folder of a run: state.toml, model, journals and checkpoints of two members. state: its coordinator's, at its end."""

    folder: Path
    state: CoordinatorState

    def journals(self, member: str = "one") -> list[Path]:
        return sorted((self.folder / member / "journals").iterdir(), key=lambda path: int(path.stem.split("-")[-2]))

    def checkpoint(self, step: int) -> Path:
        return checkpoint_path(self.folder / "one" / "saved", "audited", step)

    def audit(self, *more: str | Path, member: str = "one") -> Answer:
        sources = [] if more and isinstance(more[0], Path) else [self.folder / member / "journals"]
        words = [*sources, *more, "--config-path", self.folder]
        done = CliRunner().invoke(_command, ["audit", *map(str, words)])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return Answer(done.exit_code, " ".join(done.output.split()))


@dataclass(frozen=True)
class Answer:
    code: int
    text: str


class _Command:
    """The program with its exit codes and sentences, for click's runner."""

    name = "psyche"

    def main(self, args: list[str], **_: Any) -> None:
        main(args)


_command: Any = _Command()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("audited")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(dict(LLAMA)))
    (folder / "state.toml").write_text(RUN)
    return Played(folder, anyio.run(_play, folder))


async def _play(folder: Path) -> CoordinatorState:
    run = psyche.load_run(folder / "state.toml")
    async with psyche.Coordinator(run) as coordinator:

        def member(name: str, key: SecretKey | None = None) -> psyche.Client:
            return psyche.Client(
                coordinator.address,
                key=key,
                base=folder,
                checkpoint_dir=folder / name / "saved",
                options={"publish_journal": folder / name / "journals"},
            )

        async with member("one", KEY) as one, member("two") as two:
            assert (await one.wait()).success
            assert (await two.wait()).success
        return coordinator.state


@pytest.fixture
def played(original: Played, tmp_path: Path) -> Played:
    shutil.copytree(original.folder, tmp_path / "run")
    return replace(original, folder=tmp_path / "run")


def manifest_digest(folder: Path) -> str:
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest.digest is not None
    return manifest.digest


# ------------------------------------------------------------------------------------------------------------ what is right


def test_a_whole_run_is_verified_from_its_first_weights(played: Played) -> None:
    names = [path.name for path in played.journals()]
    assert [re.sub(r"-[0-9a-f]{8}\.", "-HISTORY.", re.sub(r"-[0-9a-f]{16}-", "-INSTANCE-", name)) for name in names] == [
        "audited-INSTANCE-g0-steps1-4-HISTORY.journal",
        "audited-INSTANCE-g0-steps5-8-HISTORY.journal",
    ]
    answer = played.audit()
    assert answer.code == 0
    assert "audited 8 steps of run audited" in answer.text
    assert "16 accepted results of 2 members" in answer.text
    assert f"VERIFIED: the model after step 8 is {manifest_digest(played.checkpoint(8))}" in answer.text
    assert "Not checked, since journals do not say it: which statements of witnesses" in answer.text


def test_journals_and_checkpoints_of_both_members_say_the_same(played: Played) -> None:
    folders = [played.folder / name / part for name in ("one", "two") for part in ("journals", "saved")]
    answer = played.audit(*folders, "--json")
    found = json.loads(answer.text)
    assert (answer.code, found["verdict"], found["steps"], found["members"]) == (0, "verified", 8, 2)
    assert found["digests_compared"] >= 10, "bases of four journals, digests and decisions of two checkpoints of two members"


def test_both_members_and_the_coordinator_have_the_same_histories_without_a_gap(played: Played) -> None:
    """An audit tells by them what a restored coordinator has left; so a difference would be a wrong note."""
    found = [find([played.folder / name / "journals"]).segments for name in ("one", "two")]
    one, two = ({step: each.history_after(step) for each in segments for step in steps_of(each)} for segments in found)
    assert one == two
    assert NO_DIGEST not in one.values()
    assert {each.header.base_step: each.header.base_history for each in found[0]} == {0: NO_DIGEST, 4: one[4]}
    known = signed_in(played.state, source="").histories
    assert {step: one[step] for step in known if step} == {step: history for step, history in known.items() if step}
    assert 8 in known
    assert json.loads(played.audit("--json").text)["notes"] == []


def steps_of(segment: Segment) -> range:
    return range(segment.base_step + 1, segment.last_step + 1)


def signed_audit(played: Played, **more: Any) -> AuditReport:
    request = AuditRequest(
        sources=[played.folder / "one" / "journals"],
        run=load_run_file(played.folder / "state.toml"),
        base=played.folder,
        cache=played.folder / "cache",
        signed=replace(signed_in(played.state, source="the coordinator"), **more),
    )
    return run_audit(request, PluginRegistry.discover().load)


def test_the_coordinator_s_state_says_which_models_members_signed(played: Played) -> None:
    report = signed_audit(played)
    assert report.verified
    assert report.compared >= 4, "two ends of epochs that members signed, beside the journals' own two"
    assert report.digest == {end.step: end.digest.hex() for end in played.state.ends}[8]


def test_a_model_that_members_did_not_sign_is_found(played: Played) -> None:
    difference = signed_audit(played, ends={8: bytes(32)}).difference
    assert difference is not None
    assert (difference.step, difference.source) == (8, "what members signed, by the coordinator")
    decided = signed_in(played.state, source="").decisions
    wrong = {step: replace(decision, statements=b"1" * 32) for step, decision in decided.items()}
    assert wrong
    difference = signed_audit(played, decisions=wrong).difference
    assert difference is not None
    assert (difference.step, difference.source) == (min(wrong), "the coordinator")


def test_a_coordinator_of_another_run_of_this_name_is_told(played: Played) -> None:
    async def ask() -> Answer:
        run = psyche.load_run(played.folder / "state.toml")
        async with psyche.Coordinator(run, backend="tcp") as coordinator:
            return await anyio.to_thread.run_sync(lambda: played.audit("--server-addr", str(coordinator.address)))

    answer = anyio.run(ask)
    assert answer.code == 2
    assert "which was expected" in answer.text
    assert "another run or an earlier one of the same name" in answer.text


def test_the_model_of_any_step_is_written_as_a_checkpoint_and_an_audit_goes_on_from_it(played: Played) -> None:
    out = played.folder / "step-3"
    answer = played.audit("--until", "3", "--out", out)
    assert answer.code == 0
    manifest = read_manifest(out)
    assert manifest is not None
    assert (manifest.run_id, manifest.step, manifest.epoch, manifest.mid_epoch) == ("audited", 3, 0, True)
    assert manifest.data_index == 12
    answer = played.audit("--checkpoint", out)
    assert answer.code == 0
    assert "audited 5 steps" in answer.text
    assert manifest_digest(played.checkpoint(8)) in answer.text
    assert "is not an empty folder" in played.audit("--until", "3", "--out", out).text


def test_the_end_of_an_epoch_is_the_checkpoint_that_members_saved(played: Played) -> None:
    out = played.folder / "step-4"
    assert played.audit("--until", "4", "--out", out).code == 0
    ours, theirs = read_manifest(out), read_manifest(played.checkpoint(4))
    assert ours is not None
    assert theirs is not None
    assert ours.tensors == theirs.tensors
    assert (ours.digest, ours.decision, ours.mid_epoch) == (theirs.digest, theirs.decision, False)


def test_an_audit_begins_with_the_first_of_several_checkpoints_that_a_journal_goes_on_from(played: Played) -> None:
    first, _ = played.journals()
    first.unlink()
    answer = played.audit("--checkpoint", played.folder / "one" / "saved")
    assert answer.code == 0
    assert "audited 4 steps of run audited" in answer.text
    assert "4 to 8, from the checkpoint" in answer.text


# ------------------------------------------------------------------------------------------------------------ what is wrong


def at_step(step: int, slot: int, change: Callable[[StoredResult], StoredResult | None]) -> Callable[[Item], Item | None]:
    """Change one result of a step."""

    def changed(item: Item) -> Item | None:
        return change(item) if isinstance(item, StoredResult) and (item.step, item.slot) == (step, slot) else item

    return changed


def test_a_flipped_byte_of_a_payload_is_damage_from_its_step_on(played: Played) -> None:
    first, _ = played.journals()
    content = bytearray(first.read_bytes())
    content[len(content) // 2] ^= 1
    first.write_bytes(content)
    answer = played.audit()
    assert answer.code == 2
    assert re.search(
        r"no journal has the steps \d to 4 \(.* is damaged after step \d: the check of a frame is wrong\)", answer.text
    )


def test_a_flipped_byte_in_the_last_journal_is_not_taken_for_its_end(played: Played) -> None:
    _, last = played.journals()
    content = bytearray(last.read_bytes())
    content[-40] ^= 1
    last.write_bytes(content)
    answer = played.audit()
    assert answer.code == 2
    assert "the journals end with step 7" in answer.text
    assert "audit up to there with --until 7" in answer.text
    assert played.audit("--until", "7").code == 0


def test_a_damaged_journal_does_not_matter_where_another_member_s_is_whole(played: Played) -> None:
    first, _ = played.journals()
    first.write_bytes(first.read_bytes()[: first.stat().st_size // 2])
    answer = played.audit(played.folder / "one" / "journals", played.folder / "two" / "journals")
    assert answer.code == 0
    assert "is damaged after step" in answer.text


def test_a_payload_that_was_exchanged_with_its_hash_has_no_commitment(played: Played) -> None:
    """Whoever changes a payload and everything in the journal that names it cannot sign it."""
    swapped: dict[bytes, bytes] = {}

    def change(item: Item) -> Item:
        match item:
            case bytes() if not swapped:
                flipped = item[:-1] + bytes((item[-1] ^ 1,))
                swapped[hashlib.sha256(item).digest()] = hashlib.sha256(flipped).digest()
                return flipped
            case StoredResult() if item.payload_hash in swapped:
                return replace(item, payload_hash=swapped[item.payload_hash])
            case AppliedRound():
                return replace(item, results=tuple((one, swapped.get(other, other)) for one, other in item.results))
        return item

    forge(played.journals()[0], change)
    answer = played.audit()
    assert answer.code == 1
    assert "DIFFERENCE at step 1: the result of slot" in answer.text
    assert "has a commitment that does not follow from its run, round, share, trainer and payload" in answer.text


def sign_again(played: Played, *, step: int, payload: Callable[[list[bytes]], bytes]) -> None:
    """Put another result of the first member into its journal, with all hashes and its signature. payload: given those before."""
    instance = played.state.instance
    payloads: list[bytes] = []
    again: dict[bytes, tuple[bytes, bytes]] = {}
    items: list[Item] = []
    for item in items_of(played.journals()[0]):
        if isinstance(item, bytes):
            payloads.append(item)
        if isinstance(item, StoredResult) and item.step == step and item.trainer == KEY.public:
            other = payload(payloads)
            payload_hash = hashlib.sha256(other).digest()
            commitment = commitment_hash(
                instance,
                epoch=item.epoch,
                step=item.step,
                seed=item.seed,
                share=item.share,
                trainer=item.signer,
                payload_hash=payload_hash,
            )
            again[item.commitment] = commitment, payload_hash
            signature = sign_commitment(KEY, instance, commitment)
            items += [other] if other not in payloads else []
            items.append(replace(item, commitment=commitment, payload_hash=payload_hash, signature=signature))
        elif isinstance(item, AppliedRound):
            items.append(replace(item, results=tuple(again.get(one, (one, other)) for one, other in item.results)))
        else:
            items.append(item)
    assert again
    write_items(played.journals()[0], items)


def test_a_member_that_signs_another_result_later_is_found_by_the_digest(played: Played) -> None:
    """It has the key, so all records are right; but the model of the next journal is another one."""
    sign_again(played, step=3, payload=lambda payloads: payloads[0])
    answer = played.audit()
    assert answer.code == 1
    assert "DIFFERENCE at step 4: the recomputed model after step 4 is" in answer.text
    assert re.search(r"steps5-8-[0-9a-f]{8}\.journal\)", answer.text)
    other = played.audit(played.folder / "one" / "journals", played.folder / "two" / "journals")
    assert "DIFFERENCE at step 3: another journal has another round for step 3: 2 and 2 accepted results" in other.text


def test_a_payload_that_no_member_would_have_accepted_is_found(played: Played) -> None:
    sign_again(played, step=3, payload=lambda payloads: payloads[0][:-1])
    answer = played.audit()
    assert answer.code == 1
    assert re.search(r"DIFFERENCE at step 3: the accepted payload [0-9a-f]{16}… does not fit the model: ", answer.text)


def test_a_payload_that_is_too_large_is_not_read(played: Played) -> None:
    sign_again(played, step=2, payload=lambda _: bytes(10_000_000))
    answer = played.audit()
    assert answer.code == 1
    assert re.search(
        r"DIFFERENCE at step 2: the accepted payload \w{16}… has 10,000,000 bytes, and a result of this", answer.text
    )


def test_a_changed_rate_is_not_the_schedule_s(played: Played) -> None:
    forge(
        played.journals()[1],
        lambda item: replace(item, learning_rate=0.5) if isinstance(item, AppliedRound) and item.step == 6 else item,
    )
    answer = played.audit()
    assert answer.code == 1
    wrong = "its results were applied with the learning rate 0.5, and the run's schedule gives 0.001"
    assert f"DIFFERENCE at step 6: {wrong}" in answer.text, answer.text
    assert re.search(r"gives 0\.001; or the run file \S+state\.toml is not the one the run had", answer.text), answer.text


def test_a_forged_signature_is_found(played: Played) -> None:
    forge(played.journals()[0], at_step(2, 1, lambda result: replace(result, signature=bytes(64))))
    answer = played.audit()
    assert answer.code == 1
    assert "DIFFERENCE at step 2: the result of slot 1, signed by" in answer.text
    assert "has a commitment whose signature is not valid" in answer.text


def test_an_accepted_result_that_is_left_out_is_found(played: Played) -> None:
    forge(played.journals()[0], at_step(2, 0, lambda _: None))
    answer = played.audit()
    assert answer.code == 1
    assert re.search(r"DIFFERENCE at step 2: the accepted result [0-9a-f]{16}… is not in the journal", answer.text)


def test_a_missing_journal_is_told(played: Played) -> None:
    first, last = played.journals()
    first.unlink()
    answer = played.audit()
    assert answer.code == 2
    assert "no journal has the steps 1 to 4, and the audit starts with the model of step 0" in answer.text
    last.unlink()
    assert "there is no journal that can be read in" in played.audit().text


def test_a_wrong_checkpoint_is_told(played: Played) -> None:
    wrong = played.folder / "wrong"
    assert played.audit("--until", "3", "--out", wrong).code == 0
    manifest = json.loads((wrong / "psyche.json").read_text())
    manifest["step"] = 4
    (wrong / "psyche.json").write_text(json.dumps(manifest))
    answer = played.audit("--checkpoint", wrong)
    assert answer.code == 2
    assert "of step 4, is of another history than the newest rounds" in answer.text
    manifest["decision"]["history"] = "0" * 64
    (wrong / "psyche.json").write_text(json.dumps(manifest))
    answer = played.audit("--checkpoint", wrong)
    assert answer.code == 1
    assert "DIFFERENCE at step 4: the model to begin with, of step 4, is" in answer.text
    assert re.search(r"steps5-8-[0-9a-f]{8}\.journal\)", answer.text)
    (wrong / "psyche.json").write_text(json.dumps(manifest | {"digest": "0" * 64}))
    assert "and should be 0000000000000000… (the manifest of" in played.audit("--checkpoint", wrong).text
    (wrong / "psyche.json").write_text(json.dumps(manifest | {"instance": "0" * 64}))
    answer = played.audit("--checkpoint", wrong)
    assert answer.code == 2
    assert "no journal goes on from a checkpoint in" in answer.text


def test_a_checkpoint_beside_the_journals_that_says_otherwise_is_found(played: Played) -> None:
    saved = played.checkpoint(4)
    manifest = json.loads((saved / "psyche.json").read_text())
    manifest["decision"]["statements"] = "0" * 63 + "1"
    (saved / "psyche.json").write_text(json.dumps(manifest))
    answer = played.audit(played.folder / "one" / "journals", saved.parent)
    assert answer.code == 1
    assert "DIFFERENCE at step 4: the statements of witnesses that decided it are others" in answer.text


def test_a_damaged_checkpoint_beside_the_journals_is_a_difference(played: Played) -> None:
    (weights,) = played.checkpoint(4).glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    answer = played.audit(played.folder / "one" / "journals", played.checkpoint(4).parent)
    assert answer.code == 1
    assert "DIFFERENCE at step 4: a checkpoint is damaged: " in answer.text
    assert "VERIFIED" not in answer.text


def test_another_run_s_first_weights_are_not_these(played: Played) -> None:
    state = played.folder / "state.toml"
    state.write_text(state.read_text().replace('run_id = "audited"', 'run_id = "another"'))
    answer = played.audit()
    assert answer.code == 1
    assert "DIFFERENCE at step 0: the model to begin with, of step 0, is" in answer.text
    assert "is this the run's own file and base model?" in answer.text
