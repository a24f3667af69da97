from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_backend_tcp.server.documents import Documents
from psyche_backend_tcp.server.hub import PendingSave
from psyche_backend_tcp.server.initial_state import begin
from psyche_backend_tcp.server.state_store import StateStore, state_file
from psyche_core.config.run_config import Choice, CoordinatorConfig
from psyche_core.coordinator import serialization
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import ConfigError, UserError
from psyche_core.testing.backend import small_state
from psyche_core.types import NodeIdentity, RunState

ALICE = NodeIdentity(b"a" * 32, b"a" * 32)
ADDRESSES = {ALICE.signer: b"here"}


def pending_save(state: CoordinatorState, *, opening: CoordinatorConfig | None = None) -> PendingSave:
    draft = Documents(small_state(clients=200), {}).draft(state, ADDRESSES)
    assert draft is not None
    return PendingSave(1, draft, opening)


def joined(step: int = 1) -> CoordinatorState:
    state = small_state()
    return replace(state, pending=(ALICE,), progress=replace(state.progress, step=step))


@pytest.mark.parametrize("run_id", ['"test" (4/32 bytes, 28 zeroes)', "a/b", "../up", "..", ".", "con:", "ünï", "a b", "x" * 32])
def test_b5_any_run_id_gives_a_file_name_that_can_be_written(tmp_path: Path, run_id: str) -> None:
    """The reference named its file after the debug form of the run id; the slash in it made every save fail (defect B5)."""
    state = replace(joined(), run_id=run_id)
    store = StateStore(tmp_path / "new" / "folder", run_id)
    store.save(pending_save(state))
    assert store.path.parent == tmp_path / "new" / "folder"
    assert not set(store.path.name) & set('/\\:"<>|?* ')
    loaded = StateStore(tmp_path / "new" / "folder", run_id).load()
    assert loaded is not None
    assert (loaded.update.state, loaded.update.addresses, loaded.opening) == (state, ADDRESSES, None)


@given(st.text(min_size=1, max_size=32), st.text(min_size=1, max_size=32))
def test_two_runs_never_share_a_file(one: str, other: str) -> None:
    names = [state_file(Path("d"), run_id).name.lower() for run_id in (one, other)]
    assert (names[0] == names[1]) == (one == other)


def test_nothing_saved_is_no_state(tmp_path: Path) -> None:
    assert StateStore(tmp_path, "run").load() is None


def test_the_file_before_is_kept_and_used_only_where_there_is_no_newer(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "conformance")
    store.save(pending_save(joined(step=1)))
    store.save(pending_save(joined(step=2)))
    previous = store.path.with_name(store.path.name + ".previous")
    assert previous.exists()
    store.path.unlink()  # killed between the two renames
    loaded = store.load()
    assert loaded is not None
    assert loaded.update.state.progress.step == 1


def test_a_file_half_written_is_never_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StateStore(tmp_path, "conformance")
    store.save(pending_save(joined(step=1)))

    def power_cut(_: int) -> None:
        message = "power cut"
        raise OSError(28, message)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", power_cut)
        with pytest.raises(UserError, match="cannot be saved to"):
            store.save(pending_save(joined(step=2)))
    loaded = store.load()
    assert loaded is not None
    assert loaded.update.state.progress.step == 1
    store.save(pending_save(joined(step=3)))
    assert store.load() is not None


def test_everything_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, rename = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("sync"), fsync(handle))[1])
    monkeypatch.setattr(Path, "replace", lambda self, to: (order.append("rename " + self.suffix), rename(self, to))[1])
    store = StateStore(tmp_path, "conformance")
    store.save(pending_save(joined()))
    store.save(pending_save(joined()))
    assert order == ["sync", "rename .new", "sync", "sync", "rename .state", "rename .new", "sync"]


def put_back(store: StateStore, older: bytes) -> CoordinatorState:
    """Put an older file in place, as an owner does, and load it."""
    store.path.write_bytes(older)
    loaded = store.load()
    assert loaded is not None
    return loaded.update.state


def test_an_older_file_put_in_place_does_not_cost_the_later_state(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "conformance")
    store.save(pending_save(joined(step=1)))
    older = store.path.read_bytes()
    for step in (2, 3, 4):
        store.save(pending_save(joined(step=step)))
    assert store.keep_later(joined(step=4)) is None, "the file before the newest one is older"
    kept = store.keep_later(put_back(store, older))
    assert kept == joined(step=3)
    for step in (1, 2):
        store.save(pending_save(joined(step=step)))
    assert store.keep_later(joined(step=2)) == joined(step=3), "still later, after other saves"
    assert store.keep_later(joined(step=3)) is None
    store.later_path.replace(store.path)
    loaded = store.load()
    assert loaded is not None
    assert loaded.update.state == joined(step=3)


def test_of_two_later_states_the_latest_is_kept(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "conformance")
    store.save(pending_save(joined(step=1)))
    older = store.path.read_bytes()
    for step in (2, 5, 6):
        store.save(pending_save(joined(step=step)))
    assert store.keep_later(put_back(store, older)) == joined(step=5)
    for step in (2, 3, 4):
        store.save(pending_save(joined(step=step)))
    assert store.keep_later(put_back(store, older)) == joined(step=5), "not that of step 3"


def test_a_file_of_another_run_or_a_damaged_one_is_no_later_state(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "conformance")
    store.save(pending_save(replace(joined(step=9), instance=b"o" * 32)))
    store.save(pending_save(joined(step=1)))
    assert store.keep_later(joined(step=1)) is None
    store.path.with_name(store.path.name + ".previous").write_bytes(b"psyche")
    assert store.keep_later(joined(step=1)) is None
    assert not store.later_path.exists()


@pytest.mark.parametrize("place", [0, 14, 15, 46, 47, 60, -1])
def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, place: int) -> None:
    store = StateStore(tmp_path, "conformance")
    store.save(pending_save(joined()))
    store.save(pending_save(joined()))
    content = bytearray(store.path.read_bytes())
    content[place] ^= 1
    store.path.write_bytes(content)
    with pytest.raises(UserError, match=r"cannot be used: .*can be used: .*\.previous of step 1\. Move .* away and rename that"):
        store.load()


def test_a_damaged_previous_file_is_not_recommended(tmp_path: Path) -> None:
    """Both files were truncated: the message named the one before without having read it."""
    store = StateStore(tmp_path, "conformance")
    for step in (1, 2):
        store.save(pending_save(joined(step=step)))
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"\.previous cannot be used either\. Look for a backup") as refused:
        store.load()
    assert "rename" not in str(refused.value)
    assert "begins at step 1 with the model that the run's file names" in str(refused.value)


def test_a_missing_file_is_told_where_the_one_before_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = StateStore(tmp_path, "conformance")
    for step in (1, 2):
        store.save(pending_save(joined(step=step)))
    store.load()
    assert not caplog.records
    store.path.unlink()
    store.load()
    (said,) = caplog.messages
    assert f"{store.path} is missing, so the one before it is used: {store.path.name}.previous, at step 1" in said


def test_another_releases_file_is_told_apart(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "conformance")
    store.path.write_bytes(b"psyche state 2\nwhatever")
    with pytest.raises(UserError, match=r"another release of this program wrote it.* start that release again"):
        store.load()


@pytest.mark.parametrize(("by", "which"), [(-1, "an older"), (1, "a newer")])
def test_a_state_of_another_version_names_that_release_and_what_becomes_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: int, which: str
) -> None:
    store = StateStore(tmp_path, "conformance")
    with monkeypatch.context() as patch:
        patch.setattr(serialization, "VERSION", serialization.VERSION + by)
        for step in (1, 2):
            store.save(pending_save(joined(step=step)))
    with pytest.raises(UserError, match=f"{which} release of this program wrote it.* start that release again") as refused:
        store.load()
    said = str(refused.value)
    assert f"move {store.path.name} and {store.path.name}.previous away" in said
    assert "upload the newest one and name it as checkpoint in the run's file" in said
    assert "client" not in said
    assert "damaged" not in said


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_a_sentence(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    store = StateStore(tmp_path_factory.getbasetemp(), "bytes")
    store.path.write_bytes(content)
    with pytest.raises(UserError, match="cannot be used: "):
        store.load()


def test_a_file_is_for_its_owner_only(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "conformance")
    store.save(pending_save(joined()))
    assert store.path.stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another --save-state-dir"):
        StateStore(tmp_path / "file" / "below", "run")


def test_the_saved_run_goes_on_under_its_own_configuration(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "conformance")
    store.save(pending_save(joined(step=7)))
    beginning = begin(small_state(), None, store.load(), path=store.path, data_key=None)
    assert beginning.resumed
    assert (beginning.state, beginning.addresses) == (joined(step=7), ADDRESSES)


def test_another_configuration_is_refused_with_the_difference_and_what_to_do(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "conformance")
    store.save(pending_save(joined(step=7)))
    given_state = small_state()
    other = replace(given_state, config=given_state.config.model_copy(update={"total_steps": 20}))
    with pytest.raises(
        ConfigError, match=r"config\.total_steps is 10 there and 20 in the run's file.*go on at step 7.*move"
    ) as refused:
        begin(other, None, store.load(), path=store.path, data_key=None)
    assert str(store.path) in str(refused.value)


def test_the_checkpoint_a_run_moved_by_itself_is_no_difference(tmp_path: Path) -> None:
    state = joined()
    llm = state.model.LLM.model_copy(update={"checkpoint": Choice("Dummy", {"repo_id": "newer"})})
    moved = replace(state, model=state.model.model_copy(update={"LLM": llm}))
    store = StateStore(tmp_path, "conformance")
    store.save(pending_save(moved))
    assert begin(small_state(), None, store.load(), path=store.path, data_key=None).state == moved


def first_epoch(state: CoordinatorState, **changes: int) -> CoordinatorState:
    return replace(state, config=state.config.model_copy(update=changes))


def test_first_epochs_settings_are_kept_apart_and_may_change_until_it_begins(tmp_path: Path) -> None:
    own = small_state().config
    store = StateStore(tmp_path, "conformance")
    store.save(pending_save(first_epoch(joined(), warmup_time=900), opening=own))
    again = begin(first_epoch(small_state(), warmup_time=300), own, store.load(), path=store.path, data_key=None)
    assert (again.state.config.warmup_time, again.opening) == (300, own)
    without = begin(small_state(), None, store.load(), path=store.path, data_key=None)
    assert (without.state.config, without.opening) == (own, None)
    store.save(pending_save(replace(joined(), run_state=RunState.Cooldown)))
    late = begin(first_epoch(small_state(), warmup_time=300), own, store.load(), path=store.path, data_key=None)
    assert (late.state.config, late.opening) == (own, None)


def test_data_this_server_serves_is_published_with_its_key(tmp_path: Path) -> None:
    state = small_state()
    llm = state.model.LLM.model_copy(update={"data_location": Choice("Server", {"location": "data.example.org:20001"})})
    state = replace(state, model=state.model.model_copy(update={"LLM": llm}))
    pinned = begin(state, None, None, path=None, data_key=b"k" * 32).state
    place = pinned.model.LLM.data_location.settings
    assert place == {"location": "data.example.org:20001#" + "6b" * 32}
    store = StateStore(tmp_path, "conformance")
    store.save(pending_save(pinned))
    renewed = begin(state, None, store.load(), path=store.path, data_key=b"n" * 32).state
    assert renewed.model.LLM.data_location.settings == {"location": "data.example.org:20001#" + "6e" * 32}
