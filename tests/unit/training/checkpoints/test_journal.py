"""The journal of applied rounds: what was synced is read again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.errors import ConfigError, ModelError, WireError
from psyche_core.training.checkpoints.journal.journal import LEAST_LIMIT, Journal, default_limit
from psyche_core.training.checkpoints.journal_records import (
    FRAME,
    AppliedRound,
    Header,
    Kind,
    StoredResult,
    decode_record,
    encode_record,
    kind_of,
)
from psyche_core.wire.codec import encode
from tests.unit.training.journal_cases import (
    DIGEST,
    INSTANCE,
    add_results,
    add_round,
    applied,
    applied_rounds,
    history,
    open_journal,
    payload_of,
    play,
    read,
    result,
    stored_results,
)

# ------------------------------------------------------------------------------------------------------------------ records


@given(st.one_of(stored_results, applied_rounds))
def test_a_record_is_read_as_it_was_written_bit_for_bit(record: StoredResult | AppliedRound) -> None:
    body = encode_record(record)
    assert decode_record(kind_of(record), body) == record
    if isinstance(record, AppliedRound):
        again = decode_record(kind_of(record), body)
        assert isinstance(again, AppliedRound)
        assert again.learning_rate.hex() == record.learning_rate.hex()


@pytest.mark.parametrize(
    "wrong",
    [
        Header(instance=b"short", generation=0, base_step=0, base_digest=DIGEST),
        Header(instance=INSTANCE, generation=2**32, base_step=0, base_digest=DIGEST),
        Header(instance=INSTANCE, generation=0, base_step=0, base_digest=DIGEST, base_history=b"short"),
        applied(1, rate=float("nan")),
        applied(1, rate=-0.5),
        applied(2**32),
    ],
)
def test_what_cannot_be_read_is_not_written(wrong: Header | AppliedRound) -> None:
    with pytest.raises(WireError):
        encode_record(wrong)


def test_a_header_has_the_history_of_its_base() -> None:
    known = Header(instance=INSTANCE, generation=1, base_step=4, base_digest=DIGEST, base_history=history(4))
    assert decode_record(Kind.Header, encode_record(known)) == known
    for wrong in ([INSTANCE, 1, 4, DIGEST], [INSTANCE, 1, 4, DIGEST, b"short"], [INSTANCE, 1, 4, DIGEST, *2 * [history(4)]]):
        with pytest.raises(WireError):
            decode_record(Kind.Header, encode(wrong))


# ------------------------------------------------------------------------------------------------------------------ the file


def test_a_journal_gives_back_what_was_synced(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        assert journal.read() is None
        assert journal.broken
        journal.begin(10, DIGEST, 3)
        written = play(journal, 11, 20)
        add_results(journal, 21)
        journal.sync()
        add_results(journal, 22)  # never synced
        assert journal.size == journal.path.stat().st_size + sum(
            2 * FRAME.size + len(encode_record(result(22, slot))) + len(payload_of(22, slot)) for slot in range(3)
        ) + FRAME.size + len(encode_record(result(22, 3)))
        assert not journal.full
    with open_journal(tmp_path) as journal:
        found = journal.read(generation=3)
        assert found is not None
        assert found.header == Header(instance=INSTANCE, generation=3, base_step=10, base_digest=DIGEST)
        assert found.rounds == tuple(each for each in written if isinstance(each, AppliedRound))
        assert found.pending == tuple(result(21, slot) for slot in range(4))
        assert [found.payload(each) for each in found.rounds[4].payload_hashes] == [payload_of(15, slot) for slot in (3, 0, 2)]
        assert found.last_step == journal.last_step == 20
        assert not journal.add_result(result(21, 1), payload_of(21, 1)), "it is there already"
        add_round(journal, 21)
        assert journal.payload(result(21, 0).payload_hash) == payload_of(21, 0)
        journal.sync()
        size = journal.path.stat().st_size
        journal.sync()
        assert journal.path.stat().st_size == size
    again = read(tmp_path)
    assert again is not None
    assert (again.last_step, again.pending) == (21, ())


def test_a_payload_stands_in_the_file_once(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 3)
        content = journal.path.read_bytes()
    assert all(content.count(payload_of(step, slot)) == 1 for step in (1, 2, 3) for slot in range(3))


def test_an_early_checkpoint_takes_along_what_is_on_its_way(tmp_path: Path) -> None:
    """A checkpoint in the middle of an epoch: results of two later steps were verified, and will be applied."""
    with open_journal(tmp_path, limit=1000) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 5)
        assert journal.full
        add_results(journal, 6)
        journal.sync()
        add_results(journal, 7)
        journal.begin(5, b"e" * 32, 0)
        for step in (6, 7):
            add_round(journal, step)
        journal.sync()
        assert payload_of(5, 0) not in journal.path.read_bytes()
    found = read(tmp_path)
    assert found is not None
    assert found.header.base_digest == b"e" * 32
    assert [each.step for each in found.rounds] == [6, 7]


def test_results_of_a_history_that_was_left_do_not_go_along(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 2)
        add_results(journal, 3)
        journal.begin(2, DIGEST, 1)
        journal.sync()
    found = read(tmp_path)
    assert found is not None
    assert found.pending == ()


def test_only_what_fits_is_taken(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        with pytest.raises(ModelError, match="has no base yet"):
            journal.add_result(result(1, 0), payload_of(1, 0))
        with pytest.raises(ModelError, match="has no base yet"):
            add_round(journal, 1)
        journal.sync()
        journal.begin(0, DIGEST, 0)
        add_results(journal, 1)
        with pytest.raises(ModelError, match="does not match its hash"):
            journal.add_result(result(2, 0), b"other bytes")
        with pytest.raises(ModelError, match=r"payload [0-9a-f]{16}… of step 1 is not in the journal"):
            journal.add_applied(applied(1, result(1, 0, b"unknown")))
        with pytest.raises(ModelError, match="expected step 1, got step 2"):
            journal.add_applied(applied(2))
        with pytest.raises(ModelError, match=r"of step 1 .*got -1"):
            journal.add_applied(AppliedRound(epoch=-1, height=1, step=1, learning_rate=0.1, results=()))
        with pytest.raises(ModelError, match="does not contain payload 0000"):
            journal.payload(bytes(32))
        add_round(journal, 1)
        journal.sync()
    found = read(tmp_path)
    assert found is not None
    assert found.last_step == 1


def test_a_round_without_results_is_a_round(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(4, DIGEST, 0)
        journal.add_applied(applied(5))
        journal.sync()
    found = read(tmp_path)
    assert found is not None
    assert found.rounds == (applied(5),)


def test_the_limit_follows_the_model() -> None:
    assert default_limit(4_000_000) == LEAST_LIMIT == 64 * 2**20
    assert default_limit(4 * 10**9) == 8 * 10**9


def test_other_runs_have_journals_of_their_own(tmp_path: Path) -> None:
    with open_journal(tmp_path), Journal.open(tmp_path, "../b", instance=INSTANCE, limit_bytes=1) as other:
        other.begin(0, DIGEST, 0)
        assert other.path == tmp_path / ".._b-journal.bin"


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be opened: .*; give a folder that can be written"):
        open_journal(tmp_path / "file")


def test_what_changed_on_the_disk_meanwhile_is_noticed(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 1)
        content = journal.path.read_bytes()
        journal.path.write_bytes(content.replace(payload_of(1, 0), b"x" * len(payload_of(1, 0))))
        with pytest.raises(ModelError, match=r"cannot be read: payload .* is not the one that was written"):
            journal.payload(hashlib.sha256(payload_of(1, 0)).digest())
