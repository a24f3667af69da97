"""The optimizer's own state on disk: taken back by the replica it belongs to, and by no other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from psyche_core.errors import ModelError
from psyche_core.training.checkpoints.private_state import load_private, private_path, save_private

MASTERS = bytes(range(32))
STATE = {"delta.a": torch.arange(12.0).reshape(3, 4), "delta.b": torch.ones(5)}


def test_it_is_read_back_for_the_same_masters_only(tmp_path: Path) -> None:
    path = private_path(tmp_path / "own", "a run/../x")
    assert path.parent == tmp_path / "own"
    assert load_private(path, masters=MASTERS) is None
    save_private(path, STATE, masters=MASTERS)
    state = load_private(path, masters=MASTERS)
    assert state is not None
    assert state.keys() == STATE.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in STATE.items())
    assert load_private(path, masters=bytes(32)) is None


def test_it_is_replaced_whole_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = private_path(tmp_path, "run")
    for value in (1.0, 2.0):
        save_private(path, {"delta.a": torch.full((4,), value)}, masters=MASTERS)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    state = load_private(path, masters=MASTERS)
    assert state is not None
    assert float(state["delta.a"][0]) == 2.0


def test_a_damaged_file_is_a_sentence(tmp_path: Path) -> None:
    path = private_path(tmp_path, "run")
    save_private(path, STATE, masters=MASTERS)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ModelError, match="cannot be read"):
        load_private(path, masters=MASTERS)
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="was not saved"):
        save_private(tmp_path / "file" / "x", STATE, masters=MASTERS)
