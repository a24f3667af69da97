"""F9: who may say where the model is stored: the owner's list, or one slot drawn with the epoch's seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from psyche_core.config.run_config import Choice
from psyche_core.coordinator.checkpoints import checkpointer_slot, checkpointer_slots, is_checkpointer
from psyche_core.coordinator.commands import Checkpoint, Pause, UpdateConfig
from psyche_core.coordinator.round.committee import CommitteeSelection
from psyche_core.coordinator.round.shuffle import Lcg

HUB = Choice("Hub", {"repo_id": "owner/better"})


def cooled(play: Any, clients: int, **config: Any) -> Any:
    """A run in the cooldown of its first epoch, whose end is signed."""
    run = play(clients, rounds_per_epoch=1, **config)
    run.play_epoch()
    run.sign_end(b"\1" * 32)
    return run


@pytest.mark.parametrize("listed", [True, False])
def test_what_an_elected_member_stored_counts_once_the_end_is_signed(play: Any, members: Any, *, listed: bool) -> None:
    """A liar could say where the model is, and all members could die before the next epoch."""
    run = play(3, rounds_per_epoch=1, checkpointers=[members(number).signer.hex() for number in range(3)] if listed else [])
    run.play_epoch()
    slot = checkpointer_slot(run.state)
    assert slot is not None
    store = Checkpoint(sender=run.state.epoch.clients[slot].id, location=HUB)
    if not listed:
        for number in range(2):
            run.refused(store, "InvalidCheckpoint")
            run.do(run.end_digest(number, b"\1" * 32))
    run.do(store)
    assert run.state.model.LLM.checkpoint == HUB


@pytest.mark.parametrize(("kind", "key"), [("Hub", "repo_id"), ("Gcs", "bucket")])
def test_an_empty_place_is_refused(play: Any, kind: str, key: str) -> None:
    """It is the folder in which each newcomer's program was started, and holds no model."""
    run = cooled(play, 3)
    slot = checkpointer_slot(run.state)
    assert slot is not None
    before = run.state.model
    run.refused(Checkpoint(sender=run.state.epoch.clients[slot].id, location=Choice(kind, {key: ""})), "InvalidCheckpoint")
    assert run.state.model == before


def test_after_the_last_step_it_counts_at_once(play: Any) -> None:
    run = play(3, rounds_per_epoch=1, total_steps=1)
    run.play_epoch()
    run.cool_down()
    assert run.phase == "Finished"
    slot = checkpointer_slot(run.state)
    assert slot is not None
    run.do(Checkpoint(sender=run.state.epoch.clients[slot].id, location=HUB))
    assert run.state.model.LLM.checkpoint.settings == HUB.settings


def test_the_model_of_another_step_is_not_taken_for_the_one_asked_for(play: Any) -> None:
    """A member may have stored it before the coordinator was restored from an older state."""
    run = play(3, rounds_per_epoch=1, total_steps=1)
    run.play_epoch()
    run.cool_down()
    slot, ended = checkpointer_slot(run.state), run.state.progress.step - 1
    assert slot is not None
    sender = run.state.epoch.clients[slot].id
    for step in (ended - 1, ended + 6):
        run.refused(Checkpoint(sender, HUB, step), "InvalidCheckpoint")
    run.do(Checkpoint(sender, HUB, ended))
    assert run.state.stored.step == ended


def test_the_epoch_keeps_the_seed_of_the_tick_that_started_it(play: Any) -> None:
    run = play(3)
    seeds = Lcg(2026)
    drawn = [seeds.next_u64() for _ in range(4)]  # three joins, then the tick
    assert run.state.epoch.seed == drawn[3]
    assert run.round.seed != run.state.epoch.seed


def test_without_a_list_the_draw_with_the_epochs_seed_decides(play: Any) -> None:
    run = cooled(play, 6)
    draw = CommitteeSelection(
        tie_breaker_nodes=0, witness_nodes=0, verification_percent=0, total_nodes=6, seed=run.state.epoch.seed
    )
    assert checkpointer_slots(run.state) == draw.witness_order()
    assert checkpointer_slot(run.state) == draw.witness_order()[0]


def test_the_draw_does_not_follow_who_tells_the_last_round(play: Any) -> None:
    """It stands from the epoch's start: no later seed, statement or exit of others changes the order."""
    run = play(6, rounds_per_epoch=2)
    order = checkpointer_slots(run.state)
    run.withdraw(order[3])
    run.play_epoch()
    assert checkpointer_slots(run.state) == tuple(slot for slot in order if slot != order[3])


def test_the_next_in_the_draw_takes_over_when_one_leaves(play: Any) -> None:
    run = cooled(play, 4)
    first, second, *_ = checkpointer_slots(run.state)
    run.refused(Checkpoint(sender=run.state.epoch.clients[second].id, location=HUB), "InvalidCheckpoint")
    run.withdraw(first)
    run.refused(Checkpoint(sender=run.state.epoch.clients[first].id, location=HUB), "InvalidCheckpoint")
    run.do(Checkpoint(sender=run.state.epoch.clients[second].id, location=HUB))
    assert run.state.model.LLM.checkpoint == HUB


def test_who_cannot_store_passes_the_duty_on_and_does_not_get_it_back(play: Any, members: Any) -> None:
    run = cooled(play, 4)
    first, second, third, _ = checkpointer_slots(run.state)
    ids = [client.id for client in run.state.epoch.clients]
    before = run.state.model.LLM.checkpoint
    for slot in (second, third):
        run.refused(Checkpoint(sender=ids[slot], location=None), "InvalidCheckpoint")
    run.refused(Checkpoint(sender=members(9), location=None), "InvalidCheckpoint")
    run.do(Checkpoint(sender=ids[first], location=None))
    assert checkpointer_slots(run.state)[0] == second
    assert run.state.model.LLM.checkpoint == before, "where the model is has not changed"
    for location in (None, HUB):
        run.refused(Checkpoint(sender=ids[first], location=location), "InvalidCheckpoint")
    run.do(Checkpoint(sender=ids[second], location=None))
    run.do(Checkpoint(sender=ids[third], location=HUB))
    assert run.state.model.LLM.checkpoint == HUB


def test_the_duty_is_drawn_anew_in_the_next_epoch(play: Any) -> None:
    run = cooled(play, 1)
    run.do(Checkpoint(sender=run.state.epoch.clients[0].id, location=None))
    assert checkpointer_slots(run.state) == ()
    run.cool_down()
    run.warm_up()
    assert checkpointer_slots(run.state) == (0,)


def test_a_listed_member_that_cannot_store_now_may_say_so_and_store_later(play: Any, members: Any) -> None:
    run = cooled(play, 3, checkpointers=[members(2).signer.hex(), members(0).signer.hex()])
    run.do(Checkpoint(sender=members(2), location=None))
    assert checkpointer_slots(run.state) == (0,)
    run.do(Checkpoint(sender=members(2), location=HUB))
    assert run.state.model.LLM.checkpoint == HUB


def test_every_slot_is_drawn_about_equally_often(play: Any) -> None:
    run = cooled(play, 5)
    drawn = Counter(
        checkpointer_slot(replace(run.state, epoch=replace(run.state.epoch, seed=seed * 7919))) for seed in range(500)
    )
    assert set(drawn) == {0, 1, 2, 3, 4}
    assert min(drawn.values()) > 60


def test_before_the_first_round_nobody_is_elected(play: Any) -> None:
    run = play()
    assert checkpointer_slots(run.state) == ()
    run.join(0, 1)
    run.tick(after=3)
    assert checkpointer_slot(run.state) is None


def test_listed_signers_may_store_members_or_not(play: Any, members: Any) -> None:
    run = cooled(play, 3, checkpointers=[members(50).signer.hex(), members(2).signer.hex()])
    run.do(Checkpoint(sender=members(50), location=HUB))
    assert run.state.model.LLM.checkpoint == HUB
    other = Choice("Hub", {"repo_id": "owner/best"})
    run.do(Checkpoint(sender=members(2), location=other))
    assert run.state.model.LLM.checkpoint == other
    for number in (0, 1, 51):
        run.refused(Checkpoint(sender=members(number), location=HUB), "InvalidCheckpoint")


def test_the_members_among_the_listed_take_over_in_the_lists_order(play: Any, members: Any) -> None:
    for order in ((50, 1, 3), (3, 50, 1)):
        run = cooled(play, 4, checkpointers=[members(number).signer.hex() for number in order])
        assert checkpointer_slots(run.state) == tuple(number for number in order if number != 50)
    run.withdraw(3)
    assert checkpointer_slot(run.state) == 1
    assert is_checkpointer(run.state, members(3))  # the owner trusts the key, not the slot
    assert not is_checkpointer(run.state, members(0))


def test_a_list_of_strangers_only_leaves_no_member_to_store(play: Any, members: Any) -> None:
    run = cooled(play, 2, checkpointers=[members(50).signer.hex()])
    assert checkpointer_slots(run.state) == ()
    for number in (0, 1):
        run.refused(Checkpoint(sender=members(number), location=HUB), "InvalidCheckpoint")


def test_a_listed_signer_may_store_when_no_round_was_played(play: Any, members: Any) -> None:
    """After a warmup that was given up, what the epoch before trained may still be on its way."""
    run = play(checkpointers=[members(0).signer.hex()])
    run.do(Checkpoint(sender=members(0), location=HUB))
    run.refused(Checkpoint(sender=members(1), location=HUB), "InvalidCheckpoint")


@pytest.mark.parametrize("listed", [True, False])
def test_nothing_moves_while_members_load_or_train(play: Any, members: Any, listed: bool) -> None:
    keys = [members(number).signer.hex() for number in range(2)] if listed else []
    run = play(checkpointers=keys)
    run.join(0, 1)
    run.tick(after=3)
    run.refused(Checkpoint(sender=members(0), location=HUB), "InvalidRunState")
    run.do(run.ready(0))
    run.do(run.ready(1))
    for number in range(2):
        run.refused(Checkpoint(sender=members(number), location=HUB), "InvalidRunState")


def test_the_owner_changes_the_list_while_the_run_is_paused(play: Any, members: Any) -> None:
    run = cooled(play, 2)
    run.do(Pause())
    run.cool_down()
    key = members(9).signer.hex()
    run.refused(UpdateConfig(config=run.state.config.model_copy(update={"checkpointers": (key, key)})), "ConfigSanityCheckFailed")
    run.do(UpdateConfig(config=run.state.config.model_copy(update={"checkpointers": (key,)})))
    run.do(Checkpoint(sender=members(9), location=HUB))


def test_gcs_and_hub_follow_each_other_by_the_references_rules(play: Any) -> None:
    """Reference 2.11, each pair."""
    pairs = {
        ("P2P", "Hub"): "P2P", ("P2P", "Gcs"): "P2PGcs", ("P2PGcs", "Gcs"): "P2PGcs", ("P2PGcs", "Hub"): "P2P",
        ("Hub", "Hub"): "Hub", ("Gcs", "Gcs"): "Gcs", ("Hub", "Gcs"): "Gcs", ("Gcs", "Hub"): "Hub", ("Dummy", "Hub"): None,
    }  # fmt: skip
    run = cooled(play, 2)
    for (present, new), result in pairs.items():
        settings = {"bucket": "b"} if "Gcs" in new else {"repo_id": "new/model"}
        old = Choice(present, {"bucket": "a"} if "Gcs" in present else {"repo_id": "old/model"})
        model = run.state.model
        run.state = replace(run.state, model=model.model_copy(update={"LLM": model.LLM.model_copy(update={"checkpoint": old})}))
        slot = checkpointer_slot(run.state)
        assert slot is not None
        command = Checkpoint(sender=run.state.epoch.clients[slot].id, location=Choice(new, settings))
        if result is None:
            run.refused(command, "InvalidCheckpoint")
        else:
            run.do(command)
            assert run.state.model.LLM.checkpoint == Choice(result, settings)
