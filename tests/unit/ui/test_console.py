"""A human line for every event."""

from __future__ import annotations

import io
import re
import typing

import pytest

from psyche_core.telemetry import events as telemetry
from psyche_core.ui.console import console_lines
from psyche_core.ui.event_text import SUSPICIOUS_OVERLAP, describe
from psyche_core.verification.overlap import SUSPICIOUS

EVENTS: list[tuple[telemetry.Event, str]] = [
    (telemetry.Started("server", "", "r", "127.0.0.1:20000"), "serving run r at 127.0.0.1:20000"),
    (
        telemetry.RunContinued(3, 861, "saved/r.state"),
        "continues the run from the saved state saved/r.state: epoch 3, before step 861",
    ),
    (telemetry.RunContinued(3, 861, ""), "continues the run from the saved state: epoch 3, before step 861"),
    (telemetry.RelayStarted("http://h:3340"), "relay for members of this run: http://h:3340"),
    (telemetry.Started("client", "ab" * 32, "r", "h:1"), "client abababababababab has reached run r at h:1"),
    (telemetry.Joined("r"), "joined run r"),
    (
        telemetry.WaitsForEpoch(2),
        "epoch 2 is under way; this client waits, and takes part from the next epoch on",
    ),
    (
        telemetry.Dropped(2, 7, "late", returns=True),
        (
            "the coordinator dropped this client from epoch 2, round 7: its results came much later than all others'; if this "
            "happens again, the machine or its connection is too slow for this run; it takes part again in this epoch, once its "
            "model is up to date"
        ),
    ),
    (
        telemetry.Dropped(2, 7, "silent", returns=False),
        (
            "the coordinator dropped this client from epoch 2, round 7: it sent no result of its share; it takes "
            "part again from the next epoch on"
        ),
    ),
    (telemetry.CameBack(2), "takes part in epoch 2 again"),
    (telemetry.ModelLoading("'model' (HfLlama)"), "loading the model 'model' (HfLlama) ..."),
    (telemetry.PhaseChanged("RoundTrain", 1, 42, 3, 7), "RoundTrain: epoch 1, step 42, round 7, 3 clients"),
    (telemetry.PhaseChanged("Warmup", 1, 42, 3), "Warmup: epoch 1, step 42, 3 clients"),
    (telemetry.TokenFiles("data", 0, 38, 0, 0.0), "making token files from 38 texts in data (only once) ..."),
    (telemetry.TokenFiles("data", 10, 38, 484_823, 10.2), "making token files: 10 of 38 texts, 484.8 k tokens in 10 s"),
    (
        telemetry.TokenFiles("data", 38, 38, 1_900_000, 40.5, ready=True),
        "token files in data are ready: 1.90 M tokens from 38 texts in 40.5 s",
    ),
    (
        telemetry.Stopping(8, "saved"),
        "stopping before step 8: the run's state is saved in saved; start the server again with this folder to continue the run",
    ),
    (
        telemetry.Stopping(1, None, unchanged=True),
        "stopping before step 1; nothing has happened in the run yet, so there is no state to save",
    ),
    (telemetry.Stopping(8, None), "stopping before step 8; without --save-state-dir the run's state is lost"),
    (telemetry.ModelLoaded(1_060_000, 0.25), "model of 1.06 M parameters ready after 0.2 s"),
    (telemetry.MicroBatchFound(16), "a micro-batch of 16 sequences fits into memory"),
    (
        telemetry.Resumed("saved", 6, 9, 9),
        (
            "resumed from the checkpoint of step 6 in saved and the journal beside it, up to step 9; this is the members' newest "
            "common model, so nothing is downloaded from them"
        ),
    ),
    (
        telemetry.Resumed("saved", 6, 6, 12),
        (
            "resumed from the checkpoint of step 6 in saved; no journal there leads further; the members' newest common model is "
            "that of step 12, so the difference is downloaded from them"
        ),
    ),
    (
        telemetry.Resumed("saved", None, 4, 5),
        (
            "resumed from the run's own model and the journal in saved, up to step 4; the members' newest common model is that "
            "of step 5, so the difference is downloaded from them"
        ),
    ),
    (
        telemetry.Resumed("saved", 6, 9, 9, again=True),
        (
            "the run trained further since this client read its checkpoints, so it has read them again: resumed from the "
            "checkpoint of step 6 in saved and "
            "the journal beside it, up to step 9; this is the members' newest common model, so nothing is downloaded from them"
        ),
    ),
    (
        telemetry.Resumed("saved", None, None, 5),
        (
            "saved contains no checkpoint to continue from: the model after step 5 is downloaded from the other members or from "
            "the run's store"
        ),
    ),
    (
        telemetry.StepTrained(0, 3, 4.25, 2000, 0.5, 1234),
        "trained step 3: loss 4.2500, 2000 tokens in 0.50 s (4.0 k/s), result 1.2 kB",
    ),
    (telemetry.StepTrained(0, 3, 4.25, 2000, 0.0, 10), "trained step 3: loss 4.2500, 2000 tokens in 0.00 s (0/s), result 10 B"),
    (
        telemetry.RunDescribed("first", "'me/llama' (HfLlama)", "HfLlama", "Distro", 100, 2048, 8, 16, 1000),
        "run first trains 'me/llama' (HfLlama) with Distro: 100 steps of 8 to 16 sequences of 2048 tokens",
    ),
    (
        telemetry.StepFigures(3, 0.0004, 9.0, 0.5, 1.5, 4096, 12_288, 8000.0, 0.875, 0.25),
        "step 3: learning rate 0.0004, gradient 1.5, 8.0 k tokens/s by all, 88% of the time trains, 12.3 k tokens so far",
    ),
    (
        telemetry.StepFigures(1, 0.0004, 9.0, 0.5, 1.5, None, 4096),
        "step 1: learning rate 0.0004, gradient 1.5, 4.1 k tokens so far",
    ),
    (
        telemetry.OptimizerStatistics(3, "layers.*.mlp.weight", 4096, 12.5, 0.25, 1.5, 0.75),
        "step 3, layers.*.mlp.weight (4.1 k values): weights 12.5, update 0.25, own momentum 1.5, 75% of the signs agree",
    ),
    (
        telemetry.ResultOverlaps(
            0, 7, (telemetry.OverlapOfResult("ab" * 32, 0.25), telemetry.OverlapOfResult("cd" * 32, 0.0)), 0.1
        ),
        "results of step 7: none is like another (at most 25% of the positions)",
    ),
    (
        telemetry.ResultOverlaps(
            0, 7, (telemetry.OverlapOfResult("ab" * 32, 0.2), telemetry.OverlapOfResult("cd" * 32, 1.0, "ab" * 32, 6)), 0.1
        ),
        "results of step 7 are like others, which honest ones are not: cdcdcdcd's is 100% like abababab's of step 6",
    ),
    (telemetry.ResultsFetched(0, 7, 4, 0, 4096, 0.75, 2.0), "fetched 4 results of round 7: 4.1 kB in 0.75 s"),
    (telemetry.ResultsFetched(0, 7, 4, 1, 4096, 0.75, 2.0), "fetched 4 results of round 7: 4.1 kB in 0.75 s, 1 downloads failed"),
    (
        telemetry.OptimizerStatistics(3, "odd.bias", 5, 12.5, 0.25),
        "step 3, odd.bias (5 values): weights 12.5, update 0.25",
    ),
    (telemetry.StepApplied(0, 3, 3, 3, 0.2), "applied step 3: 3 of 3 results in 0.20 s"),
    (telemetry.Leaving("SIGINT", saves=False), "SIGINT: leaving the run cleanly; a second SIGINT ends this process at once"),
    (
        telemetry.Leaving("SIGTERM", saves=False, loading=True),
        (
            "SIGTERM: leaving the run cleanly as soon as it has loaded its model; there is nothing to save; a second SIGTERM "
            "ends this process at once"
        ),
    ),
    (
        telemetry.Leaving("SIGTERM", saves=True),
        "SIGTERM: leaving the run cleanly after saving a checkpoint; a second SIGTERM ends this process at once",
    ),
    (telemetry.WitnessSent(0, 5, opportunistic=True), "witnessed round 5 early"),
    (
        telemetry.PeerPaths(
            (
                telemetry.PathOfPeer("aa", "direct", 3.0),
                telemetry.PathOfPeer("bb", "relayed", 41.5),
                telemetry.PathOfPeer("cc", "none"),
            )
        ),
        ("other members: 1 reached directly, 1 reached through a relay, 1 not reached now (through a relay: bb 42 ms)"),
    ),
    (
        telemetry.PeerPaths((telemetry.PathOfPeer("aa", "direct", 3.0), telemetry.PathOfPeer("cc", "none")), over_others=236),
        "other members: 1 reached directly, 1 not reached now, 236 over others",
    ),
    (telemetry.RelayStarted("http://203.0.113.7:3340/"), "relay for members of this run: http://203.0.113.7:3340/"),
    (telemetry.NetworkTotals(1000, 20, 2), "sent 1.0 kB, received 20 B, 2 peers"),
    (telemetry.EpochDigest(2, 60, "cd" * 32), "epoch 2 ended after step 60: parameters cdcdcdcdcdcdcdcd…"),
    (
        telemetry.ReplicasDiffer(2, "aa" * 32, "bb" * 32, "me"),
        "REPLICAS DIFFER at the end of epoch 2: ours aaaaaaaaaaaaaaaa…, me bbbbbbbbbbbbbbbb…",
    ),
    (telemetry.Validated(60, 3.5), "validation after step 60: loss 3.5000"),
    (telemetry.Evaluated("piqa", "acc", 0.5, 9, 4, 4), "evaluation piqa of step 4: acc 0.5000 on 9 documents"),
    (telemetry.PromptAnswered(0, "To be", " or", 4, 6), "step 6 writes: 'To be' -> ' or'"),
    (telemetry.CheckpointSaved(60, "out/c"), "checkpoint of step 60 saved in out/c"),
    (
        telemetry.JournalPublished(21, 60, "out/a.journal", 1_234_567, 0.0234),
        "journal of steps 21 to 60 published in out/a.journal: 1.2 MB, copied in 0.02 s",
    ),
    (telemetry.ModelSync(60, 3, 12, 4_000_000), "fetching the model after step 60: 3 of 12 pieces, 4.0 MB"),
    (
        telemetry.PointsCounted(4, (("3ae20e59", 1200, 0), ("0a1b2c3d", 5000, 30))),
        "points so far: 0a1b2c3d 5,000, slashed 30; 3ae20e59 1,200",
    ),
    (
        telemetry.PointsCounted(4, tuple((f"{number:08x}", number, 0) for number in range(10))),
        "points so far: " + "; ".join(f"{number:08x} {number}" for number in range(9, 1, -1)) + "; and 2 more members",
    ),
    (telemetry.RewardPaid("3ae20e59", 1234567), "3ae20e59 was paid 1,234,567 units for its work"),
    (telemetry.CheckpointStored(60, "there"), "the model of step 60 is stored at there, and the run refers to it"),
    (telemetry.Resynced(2, 60), "epoch 2: our model now equals that of the other members after step 60"),
    (telemetry.EpochSigned(60, "cd" * 32), "the members signed the model after step 60: parameters cdcdcdcdcdcdcdcd…"),
    (
        telemetry.WentBack(63, 60, from_checkpoint=False),
        (
            "WENT BACK: no member had the model after step 63; the run continues with the members' model after step 60, "
            "and trains the later steps again"
        ),
    ),
    (
        telemetry.WentBack(63, 0, from_checkpoint=True),
        (
            "WENT BACK: no member had the model after step 63; the run continues from the stored checkpoint, after step 0, "
            "and trains the later steps again"
        ),
    ),
    (
        telemetry.WentBack(63, 0, from_checkpoint=True, checkpoint="Hub /models/of ours"),
        (
            "WENT BACK: no member had the model after step 63; the run continues from the stored checkpoint Hub /models/of ours, "
            "after step 0, and trains the later steps again"
        ),
    ),
    (
        telemetry.WentBack(63, 60, from_checkpoint=False, by_owner=True),
        (
            "WENT BACK: the owner returned the run from step 63 to the members' model after step 60; the later steps are trained "
            "again"
        ),
    ),
    (
        telemetry.ModelLost(63),
        (
            "THE MODEL IS LOST: in this warmup no member had the model after step 63 or that of an earlier epoch's end, and the "
            "run is paused. A member that is away, or still loads it, may have it on its disk, as a checkpoint or journal. Start "
            "its client with that --checkpoint-dir, then resume the run, as often as needed. Only if no such disk is left, start "
            "the run anew: this server keeps no state (--save-state-dir)"
        ),
    ),
    (
        telemetry.ModelLost(
            63,
            away=("3ae20e59", "49d7b0e8"),
            ask_again="kill -USR1 17",
            begin_again="psyche server run --state r.toml --save-state-dir 'my folder' --restart-from-checkpoint",
        ),
        (
            "THE MODEL IS LOST: in this warmup no member had the model after step 63 or that of an earlier epoch's end, and the "
            "run is paused. A member that is away, or still loads it, may have it on its disk, as a checkpoint or journal "
            "(members that trained and are not here: 3ae20e59, 49d7b0e8). Start its client with that --checkpoint-dir, then let "
            "the run ask its members again (kill -USR1 17), as often as needed. Only if no such disk is left, stop the server "
            "(Ctrl-C or SIGTERM) and start it once with `psyche server run --state r.toml --save-state-dir 'my folder' "
            "--restart-from-checkpoint`: all training since the stored checkpoint (step 0, the beginning of the run) is lost. If "
            "a member still has an older checkpoint of the run, add `--checkpoint file:///FOLDER` with its folder: the run then "
            "begins with these weights, and counts steps from 1"
        ),
    ),
    (
        telemetry.ModelLost(63, to_owner=False),
        (
            "THE MODEL IS LOST: in this warmup no member had the model after step 63 or that of an earlier epoch's end, and the "
            "run is paused until its owner resumes it. If the owner put an older copy of the run's state in place, the newest "
            "one brings everything back. If you have a checkpoint or journal of this run on a disk, start a client with that "
            "--checkpoint-dir and tell the run's owner. Otherwise there is nothing to do: this client waits, and takes part when "
            "the run goes on"
        ),
    ),
    (
        telemetry.ModelContested("first light", 63, 1, 4, 60, taken=False, starts=True),
        (
            "THE MODEL IS CONTESTED: members offer different models after step 63, no quorum signed one of them, and at most 1 "
            "of 4 members offer the same, so they may be lying; this client takes none until more members agree; if the next "
            "warmup ends so, too, the run goes back to the newest signed step that a member has. A member with a disk of this "
            "run helps: `psyche client train --run-id 'first light' --checkpoint-dir FOLDER`. To decide at once, the owner can "
            "return the run to the signed step 60. With a server: pause the run (kill -USR1 PID), stop the server, and start it "
            "once with `psyche server run --state FILE --save-state-dir FOLDER --restart-from-step 61`. On Solana: `psyche "
            "run-manager set-paused -r 'first light'`, and once the run is paused `psyche run-manager update-config -r 'first "
            "light' --restart-from-step 61` and `psyche run-manager set-paused -r 'first light' --resume`"
        ),
    ),
    (
        telemetry.ModelContested("first-light", 5, 2, 4, None, taken=False, starts=False),
        (
            "THE MODEL IS CONTESTED: members offer different models after step 5, no quorum signed one of them, and at most 2 "
            "of 4 members offer the same, so they may be lying; this client takes none until more members agree. A member with "
            "a disk of this run helps: `psyche client train --run-id first-light --checkpoint-dir FOLDER`. The owner "
            "cannot return the run, for no epoch's end is signed: wait for more members, or start the run anew"
        ),
    ),
    (
        telemetry.ModelContested("first-light", 5, 1, 4, None, taken=True, starts=True),
        (
            "warning: the model after step 5 is the word of 1 of 4 members: no quorum signed it, and no other member offers one, "
            "so this client takes it. If they may be lying, the owner cannot return the run, for no epoch's end is signed: wait "
            "for more members, or start the run anew"
        ),
    ),
    (
        telemetry.StateIsOlder(1, 15, 2, 24, "saved/r.state", member="49d7b0e8"),
        (
            "THE STATE IS OLDER than the run: this server continues in epoch 1, before step 15, but member 49d7b0e8 says that "
            "the run was in epoch 2, step 24. If you have just put the newest state back, all is well: that position is of what "
            "was trained from an older one. Otherwise, if you have a newer state, stop this server now, put it in place of "
            "saved/r.state, and start it again. If you want to continue from the older one, do nothing: members start again from "
            "their disks, and what came later is trained again. If they no longer have a model that old, the run pauses and "
            "asks you what to do; the newer state then still brings everything back"
        ),
    ),
    (
        telemetry.StateIsOlder(1, 15, 2, 24, "saved/r.state", later_path="saved/r.state.later"),
        (
            "THE STATE IS OLDER than the run: this server continues in epoch 1, before step 15, but a state in the same folder "
            "is in epoch 2, step 24. If you have just put the newest state back, all is well: that position is of what was "
            "trained from an older one. Otherwise, to continue from that one, stop this server now, rename "
            "saved/r.state.later to saved/r.state, and start it again. If you want to continue from the older one, do nothing: "
            "members start again from their disks, and what came later is trained again. If they no longer have a model that "
            "old, the run pauses and asks you what to do; the newer state then still brings everything back"
        ),
    ),
    (
        telemetry.StatementVoided(0, 5, "3ae20e59"),
        "epoch 0, round 5: 3ae20e59 attested results of members without a share",
    ),
    (telemetry.Problem("warning", "a peer is slow"), "warning: a peer is slow"),
    (telemetry.MemberWithdrew(2, "3ae20e59"), "epoch 2: 3ae20e59 left the run cleanly"),
    (
        telemetry.MemberExited(2, "3ae20e59", "ejected"),
        "warning: epoch 2: ejected 3ae20e59: it signed two different results for one share",
    ),
    (
        telemetry.MemberExited(2, "3ae20e59", "struck"),
        "warning: epoch 2: ejected 3ae20e59: checks of its work, or of what it said of others' work, failed twice in this epoch",
    ),
    (
        telemetry.ShareChecked(0, 5, "3ae20e59", "a1b2c3d4", "guilty", ("3ae20e59",)),
        (
            "epoch 0, round 5: the share of 3ae20e59, checked by a1b2c3d4, was not trained as it should; its samples are trained "
            "again; a strike for 3ae20e59"
        ),
    ),
    (
        telemetry.ShareChecked(0, 5, "3ae20e59", "a1b2c3d4", "passed"),
        "epoch 0, round 5: the share of 3ae20e59, checked by a1b2c3d4, was trained",
    ),
    (
        telemetry.MemberExited(2, "3ae20e59", "slow"),
        (
            "warning: epoch 2: dropped 3ae20e59 from this epoch: it took part, but its result did not reach most witnesses in "
            "time; its machine or line is slower than the others'"
        ),
    ),
    (
        telemetry.MemberExited(2, "3ae20e59", "silent"),
        (
            "warning: epoch 2: dropped 3ae20e59 from this epoch: neither its result nor its statement as a witness came, as from "
            "a machine that stands still or is cut off"
        ),
    ),
    (
        telemetry.MemberExited(2, "3ae20e59", "unstated"),
        "warning: epoch 2: dropped 3ae20e59 from this epoch: as a witness it repeatedly did not send its statement in time",
    ),
    (telemetry.MemberExited(2, "3ae20e59", "{0.__class__}"), "warning: epoch 2: dropped 3ae20e59: {0.__class__}"),
    (
        telemetry.WitnessReported("3ae20e59", 7, 3.25, 5200.0, 9.0),
        "3ae20e59 reports of step 7: loss 3.2500, 5.2 k tokens/s",
    ),
    (
        telemetry.ScoreReported("3ae20e59", "arc_easy", "acc_norm", 0.25, 100, 7),
        "3ae20e59 reports of step 7: arc_easy acc_norm 0.2500",
    ),
    (telemetry.Mended("checkpoints are saved again"), "checkpoints are saved again"),
    (telemetry.Ended("the run finished", success=True), "the run finished"),
]


@pytest.mark.parametrize(("event", "text"), EVENTS, ids=lambda value: type(value).__name__)
def test_each_event_is_one_sentence(event: telemetry.Event, text: str) -> None:
    assert describe(event) == text


@pytest.mark.parametrize(
    ("known", "advice"),
    [
        ({}, "If the state in saved is an older copy, first stop the server, put the newest state back into saved, and start it"),
        (
            {"known_step": 1200},
            (
                "This server continued from an older state than its members knew (before step 1200): first stop the server, put "
                "the newest state back into saved, and start it again; nothing is lost then. Otherwise: A member that is away"
            ),
        ),
        (
            {"known_step": 1200, "later_path": "saved/r.state.later"},
            (
                "This server continued from an older state, and a later one (before step 1200) is here: first stop the server, "
                "rename saved/r.state.later to saved/r.state, or put a still newer copy there, and start it again; nothing is"
            ),
        ),
    ],
    ids=["perhaps older", "members know", "in the folder"],
)
def test_an_owner_whose_state_may_be_older_is_told_first_to_put_the_newest_back(
    known: dict[str, typing.Any], advice: str
) -> None:
    """Training was given up for a model that members of a newer state had."""
    said = describe(telemetry.ModelLost(860, begin_again="psyche --restart-from-checkpoint", state_dir="saved", **known))
    assert f"the run is paused. {advice}" in said
    assert said.index("nothing is lost then") < said.index("--restart-from-checkpoint")


def test_a_command_for_the_owner_is_never_cut() -> None:
    command = f"psyche server run --state {'long/' * 100}state.toml --save-state-dir {'long/' * 100} --restart-from-checkpoint"
    assert command in describe(telemetry.ModelLost(63, begin_again=command, state_dir="long/" * 100, later_path="long/" * 100))


def test_no_kind_of_event_was_forgotten() -> None:
    assert {type(event) for event, _ in EVENTS} == set(typing.get_args(telemetry.Event))


def test_lines_carry_the_time() -> None:
    stream = io.StringIO()
    console_lines(stream)(telemetry.Validated(1, 2.0))
    assert re.fullmatch(r"\d\d:\d\d:\d\d validation after step 1: loss 2\.0000\n", stream.getvalue())


def test_the_network_s_totals_are_one_line_a_minute_with_rates() -> None:
    """They come every second, and every one of them stays in the JSON."""
    stream, now = io.StringIO(), 1000.0
    write = console_lines(stream, clock=lambda: now)
    for second in range(1, 131):
        now += 1
        write(telemetry.NetworkTotals(second * 2000, second * 50, 3))
    assert [line.partition(" ")[2] for line in stream.getvalue().splitlines()] == [
        "sent 120.0 kB, received 3.0 kB, 3 peers; 2.0 kB/s out and 50 B/s in for 60 s",
        "sent 240.0 kB, received 6.0 kB, 3 peers; 2.0 kB/s out and 50 B/s in for 60 s",
    ]

    write(telemetry.Ended("the run finished", success=True))
    assert [line.partition(" ")[2] for line in stream.getvalue().splitlines()[2:]] == [
        "sent 260.0 kB, received 6.5 kB, 3 peers; 2.0 kB/s out and 50 B/s in for 10 s",
        "the run finished",
    ]


def test_who_waits_for_members_says_how_many_are_here_and_needed() -> None:
    """Two members waited for a third for minutes, and no log said so."""
    waits = describe(telemetry.PhaseChanged("WaitingForMembers", 9, 435, 1, needed=3))
    assert waits == "WaitingForMembers: epoch 9, step 435, 1 of 3 clients that are needed to start"
    assert describe(telemetry.PhaseChanged("WaitingForMembers", 9, 435, 3, needed=3)).endswith(" 3 clients")
    assert describe(telemetry.PhaseChanged("WaitingForMembers", 0, 1, 1, needed=1)).endswith(", 1 client")
    assert describe(telemetry.PhaseChanged("RoundTrain", 0, 1, 1, 7)).endswith(", 1 client")


def test_a_step_that_changed_nothing_says_so() -> None:
    assert "changes nothing" in describe(telemetry.StepApplied(8, 433, 0, 4, 0.01))


def test_rounds_that_lost_shares_are_one_line_at_the_first_and_whenever_their_number_has_doubled() -> None:
    """Each had a line in a panel, and a log never said what it meant."""
    stream = io.StringIO()
    write = console_lines(stream)
    for step in range(1, 61):
        lost = ("a1b2c3d4",) if step > 40 else ()
        write(telemetry.StepApplied(0, step, 3 - len(lost), 3, 0.1, lost, ours_lost=False if lost else None))
    told = [line.partition(" ")[2] for line in stream.getvalue().splitlines() if "lost shares" in line]
    assert [line.partition(",")[0] for line in told] == [
        f"warning: {lost} of {40 + lost} rounds lost shares" for lost in (1, 2, 4, 8, 16)
    ]


def test_a_client_that_began_anew_has_no_negative_rates_and_a_fetch_no_line_for_each_piece() -> None:
    stream, now = io.StringIO(), [0.0]
    write = console_lines(stream, clock=lambda: now[0])
    write(telemetry.NetworkTotals(5_000_000, 5_000_000, 3))
    now[0] = 61.0
    write(telemetry.NetworkTotals(6_000_000, 6_000_000, 3))
    now[0] = 90.0
    write(telemetry.NetworkTotals(1_000, 1_000, 3))
    now[0] = 151.0
    write(telemetry.NetworkTotals(2_000_000, 2_000_000, 3))
    for done in range(40):  # the first and the last are told
        write(telemetry.ModelSync(60, done, 39, 512 * done))
    text = stream.getvalue()
    assert "-" not in text.replace("--", "")
    assert text.count("fetching the model") == 2


@pytest.mark.parametrize("member", ["49d7b0e8", None])
def test_the_hint_about_an_older_state_is_not_found_by_who_looks_for_a_lost_model(member: str | None) -> None:
    said = describe(telemetry.StateIsOlder(1, 15, 2, 24, "r.state", member, None if member else "r.state.later"))
    assert said.startswith("THE STATE IS OLDER")
    assert "LOST" not in said
    assert describe(telemetry.ModelLost(63, state_dir="saved", known_step=70)).startswith("THE MODEL IS LOST")


@pytest.mark.parametrize(
    ("member", "says"),
    [
        (
            "49d7b0e8",
            "epoch 54, before step 1466, but member 49d7b0e8 says that the run had gone back since, and was in epoch 2,",
        ),
        (None, "a state in the same folder is of after the run went back, and is in epoch 2, step 53. If you have just put"),
    ],
)
def test_a_state_of_before_the_run_went_back_is_older_though_it_is_further(member: str | None, says: str) -> None:
    """It said that the run was in epoch 2, as if that came after epoch 54."""
    assert says in describe(telemetry.StateIsOlder(54, 1466, 2, 53, "r.state", member, None if member else "r.state.later"))


def test_results_that_are_like_others_are_one_line_until_another_member_s_are() -> None:
    stream = io.StringIO()
    write = console_lines(stream)
    for step, alike in enumerate([(), ("aa",), ("aa",), ("aa", "bb"), ("bb",), (), ("bb",)], start=1):
        results = tuple(telemetry.OverlapOfResult(member, 0.9 if member in alike else 0.1, "cc", 1) for member in ("aa", "bb"))
        write(telemetry.ResultOverlaps(0, step, results, 0.01))
    assert [int(line.split("step ")[1].split()[0]) for line in stream.getvalue().splitlines()] == [2, 4, 7]
    assert SUSPICIOUS_OVERLAP == SUSPICIOUS


def test_a_guest_that_comes_and_goes_has_no_line() -> None:
    stream = io.StringIO()
    write = console_lines(stream)
    near, guest = telemetry.PathOfPeer("aa", "direct", 3.0), telemetry.PathOfPeer("bb", "direct", 3.0, neighbour=False)
    for peers, over_others in (((near,), 7), ((near, guest), 6), ((near,), 7)):
        write(telemetry.PeerPaths(peers, over_others))
    assert len(stream.getvalue().splitlines()) == 1
    write(telemetry.PeerPaths((telemetry.PathOfPeer("aa", "none"),), over_others=7))
    assert "1 not reached now, 7 over others" in stream.getvalue().splitlines()[1]
