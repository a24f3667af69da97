"""Can the simulator fail? Each test undoes one decision of the protocol and expects an invariant to break within some seeds.

To add a mutation: write a function in `mutations` that takes pytest's `monkeypatch` and breaks one thing by replacing an
attribute of the module *that uses it* (most modules import functions by name), then add it to MUTATIONS with the faults under
which it matters and the invariants that may catch it. `test_the_unbroken_code_passes_the_same_seeds` runs the same seeds without
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from psyche_core.simulator.compare import too_slow
from psyche_core.simulator.generate import generate, lone_liar
from psyche_core.simulator.run_result import SimFailure
from psyche_core.simulator.script import from_plain
from psyche_core.simulator.world import run_script
from tests.unit.simulator import mutations as undo
from tests.unit.simulator.mutations import Patch

SEEDS = 40
FOUND = Path(__file__).parent / "found"
LONE_SEEDS = 2


@dataclass(frozen=True, slots=True)
class Mutation:
    """faults: under which it matters. caught: invariants of which one has to break. lone: seen in long runs with one liar.
    first: the first seed, one whose run notices: others before it cost time. found: a script in `found` that is played with these
    seeds, where random runs seldom get that far.
    epoch: rounds of an epoch of such a long run, 0 for the usual number. Some lies cost time in each warmup, or a few times.
    """

    apply: Callable[[Patch], None]
    faults: tuple[str, ...]
    caught: tuple[str, ...]
    lone: bool = False
    first: int = 0
    found: str = ""
    epoch: int = 0


MUTATIONS = (
    Mutation(undo.no_drain_round, (), ("epochs-end-with-a-drain-round", "no-sample-skipped")),
    Mutation(undo.step_advances_on_cut_rounds, ("partition", "crash", "server-restart"),
             ("step-advances-with-trained-rounds-only",)),
    Mutation(undo.last_step_is_not_trained, (), ("every-step-is-trained",)),
    Mutation(undo.slots_move, ("leave", "crash"), ("slots-never-move",)),
    Mutation(undo.quorum_of_one, ("false-statements", "pause", "delay"), ("two-thirds-of-the-witnesses-accept",)),
    Mutation(undo.participants_are_ignored, ("delay", "pause", "crash"),
             ("accepted-is-applied", "replicas-are-equal", "training-never-goes-back-unsaid")),
    Mutation(undo.the_first_result_wins, ("two-results",),
             ("replicas-are-equal", "accepted-is-applied", "no-sample-applied-twice")),
    Mutation(undo.lost_shares_are_forgotten, ("three-results",), ("no-sample-skipped", "accepted-is-applied"), first=12),
    Mutation(undo.anybody_states_for_anybody, ("garbage",), ("members-speak-for-themselves",)),
    Mutation(undo.anybody_moves_the_checkpoint, ("garbage",), ("checkpointers-are-elected",), first=5),
    Mutation(undo.the_unhealthy_are_not_swept, ("leave", "crash"), ("rounds-are-played-by-the-healthy",)),
    Mutation(undo.late_payloads_are_skipped, ("withhold", "delay", "drop"), ("accepted-is-applied", "replicas-are-equal"),
             first=3),
    Mutation(undo.nothing_is_requeued, ("crash", "wrong-shape", "delay"), ("no-sample-skipped",)),
    Mutation(undo.requeued_samples_are_dealt_twice, ("crash", "wrong-shape"), ("no-sample-in-two-places",)),
    Mutation(undo.digests_are_not_compared, ("bit-flip",), ("every-round-is-applied-by-all",), first=11),
    Mutation(undo.results_are_applied_to_any_masters, (), ("training-never-goes-back-unsaid",), first=10109923,
             found="random-weights-taken-for-a-step"),
    Mutation(undo.a_restarted_client_trains_its_share_again, ("restart",), ("no-honest-member-ejected",), first=99),
    Mutation(undo.anybody_joins_with_any_key, ("stolen-key",), ("no-honest-member-dropped", "honest-work-is-paid")),
    Mutation(undo.runs_of_one_name_are_one_run, ("old-signatures",), ("no-honest-member-ejected",)),
    Mutation(undo.commitments_do_not_name_the_round, ("old-signatures", "older-state"), ("no-honest-member-ejected",), first=2),
    Mutation(undo.missed_duties_do_not_count, ("never-states",), ("a-liar-costs-little-time",), lone=True),
    Mutation(undo.late_statements_are_forgiven, ("late-statement",), ("a-liar-costs-little-time",), lone=True),
    Mutation(undo.older_ends_are_said_as_they_are, ("all-die",), ("nothing-is-lost-that-a-member-holds", "the-run-goes-on"),
             first=37),
    Mutation(undo.the_run_goes_back_as_soon_as_one_lacks_the_model, ("false-digests", "all-die"),
             ("nothing-is-lost-that-a-member-holds", "nothing-is-lost-that-a-disk-holds"), first=122),
    Mutation(undo.going_back_is_not_said, ("all-die",), ("training-never-goes-back-unsaid", "step-and-data-go-forward-only"),
             first=6),
    Mutation(undo.journals_end_with_their_checkpoint, ("older-state",), ("nothing-is-lost-that-a-disk-holds",), first=14),
    Mutation(undo.bases_of_journals_are_deleted, (), ("nothing-is-lost-that-a-disk-holds",), first=127,
             found="full-journals-lost-their-base"),
    Mutation(undo.a_journals_base_takes_the_place_of_a_signed_checkpoint, (), ("signed-checkpoints-are-found",), first=4,
             found="signed-checkpoint-set-aside-at-once"),
    Mutation(undo.bases_of_journals_forget_what_decided_them, (), ("training-never-goes-back-unsaid",), first=405,
             found="base-of-a-forgotten-step-without-results"),
    Mutation(undo.only_the_present_journal_is_held, (), ("nothing-is-lost-that-a-disk-holds",), first=380,
             found="held-in-the-journal-before"),
    Mutation(undo.a_contested_model_is_waited_for, ("all-die", "false-models"), ("the-run-goes-on",), first=6),
    Mutation(undo.few_offers_are_taken_at_once, (), ("fetched-masters-are-the-runs",), first=2540543895,
             found="offered-by-a-liar-while-holders-are-cut-off"),
    Mutation(undo.who_is_ready_cannot_give_up, (), ("nothing-is-lost-that-a-disk-holds",), first=1280954019,
             found="ready-in-an-earlier-warmup"),
    Mutation(undo.made_up_keys_fill_the_buffer, ("flood",), ("memory-is-bounded",)),
    Mutation(undo.journals_are_not_replayed, ("all-die",), ("nothing-is-lost-that-a-disk-holds",)),
    Mutation(undo.statements_sign_nothing, (), ("nothing-is-lost-that-a-disk-holds",), first=72_000_012,
             found="contested-after-all-died"),
    Mutation(undo.steps_in_between_keep_later_samples, (), ("no-sample-skipped",), first=590,
             found="back-into-the-last-rounds"),
    Mutation(undo.requests_for_models_name_no_seed, (), ("nothing-is-lost-that-a-member-holds",), first=7130,
             found="model-asked-for-in-a-repeated-warmup"),
    Mutation(undo.the_history_leaves_decisions_out, (), ("replicas-are-equal",), first=11,
             found="proof-forgotten-by-a-restore"),
    Mutation(undo.histories_are_not_compared, (), ("replicas-are-equal",), first=336,
             found="restored-thrice-and-all-died"),
    Mutation(undo.a_first_round_that_does_not_count_changes_the_history, (), ("nothing-is-lost-that-a-disk-holds",), first=10,
             found="statement-in-a-first-round-that-did-not-count"),
    Mutation(undo.a_stored_model_says_no_step, ("older-state",), ("the-run-goes-on",), first=10203358,
             found="model-of-a-later-step-after-a-restore"),
    Mutation(undo.what_a_liar_stored_counts_at_once, (), ("nothing-is-lost-that-a-disk-holds", "the-run-goes-on"), first=10052976,
             found="stored-by-a-liar-in-the-first-epoch"),
    Mutation(undo.the_run_goes_back_while_members_wait, (), ("nothing-is-lost-that-a-disk-holds",), first=83000027,
             found="holder-that-joined-in-the-warmup"),
    Mutation(undo.checkpoints_forget_what_decided_their_last_step, (), ("fetched-masters-are-the-runs",), first=10015554,
             found="fetched-in-a-forgotten-history"),
    Mutation(undo.equal_payloads_expire_with_the_first, ("empty-results", "repeated-payload"),
             ("applies-what-it-holds", "the-run-goes-on", "honest-members-succeed")),
    Mutation(undo.members_wait_alone, ("withhold",), ("no-honest-member-dropped", "a-liar-costs-little-time"),
             lone=True, first=505),
    Mutation(undo.members_gossip_once_a_second, ("selective-finished",), ("a-liar-costs-little-time",), lone=True, first=500),
    Mutation(undo.warmup_waits_for_everybody, ("idle-joiners",), ("a-liar-costs-little-time",), lone=True),
    Mutation(undo.who_says_that_it_lacks_the_model_is_excused, ("lacks-model",), ("a-liar-costs-little-time",), lone=True,
             epoch=8),
    Mutation(undo.one_warmup_in_time_forgives_one_that_was_not, ("unready-every-other",), ("a-liar-costs-little-time",),
             lone=True, epoch=8),
    Mutation(undo.who_came_back_in_a_round_is_waited_for, ("leaves-and-returns",), ("a-liar-costs-little-time",), lone=True,
             epoch=8),
)  # fmt: skip


def played(mutation: Mutation, seed: int) -> SimFailure | None:
    """What breaks in one run."""
    if mutation.found:
        known = json.loads((FOUND / f"{mutation.found}.json").read_text())["script"]
        return run_script(from_plain(known | {"seed": seed})).failure
    if not mutation.lone:
        return run_script(generate(seed, kinds=mutation.faults, rounds=12)).failure

    script = lone_liar(mutation.faults[0], members=8, seed=seed)
    rounds = mutation.epoch or script.shape.rounds_per_epoch
    script = replace(script, shape=replace(script.shape, warmup_time=30, rounds_per_epoch=rounds))
    result = run_script(script)
    return result.failure or too_slow(script, result)


NAMES = [mutation.apply.__name__ for mutation in MUTATIONS]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=NAMES)
def test_a_broken_protocol_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.apply(monkeypatch)
    for seed in range(mutation.first, mutation.first + (LONE_SEEDS if mutation.lone else SEEDS)):
        failure = played(mutation, seed)
        if failure is not None:
            assert "Error(" not in failure.sentence, f"the mutation no longer fits the code it replaces: {failure}"
            assert failure.invariant in mutation.caught, f"caught, but by another invariant: {failure}"
            return

    pytest.fail(f"{SEEDS} runs did not notice")


UNBROKEN = {
    (mutation.faults, mutation.lone, mutation.first, mutation.found, mutation.epoch): mutation for mutation in reversed(MUTATIONS)
}
"""One mutation for each set of runs, since without mutations equal scripts are equal runs."""


@pytest.mark.soak  # test_sim.py plays unbroken code each time
@pytest.mark.parametrize("mutation", UNBROKEN.values(), ids=[mutation.apply.__name__ for mutation in UNBROKEN.values()])
def test_the_unbroken_code_passes_the_same_seeds(mutation: Mutation) -> None:
    """So it was the mutation that broke them."""
    seeds = LONE_SEEDS if mutation.lone else 8
    for seed in range(mutation.first, mutation.first + seeds):
        failure = played(mutation, seed)
        assert failure is None, str(failure)
