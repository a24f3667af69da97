"""An event as a sentence, for every screen, log and page. `console`, `live` and others decide where it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from psyche_core.telemetry import events
from psyche_core.text_safety import MAX_PRINTABLE, printable
from psyche_core.ui.formatting import bytes_text, count_text
from psyche_core.ui.owner_advice import contested_model, lost_model, older_state

SUSPICIOUS_OVERLAP = 0.3
"""The same value as in `psyche_core.verification.overlap`, which needs numpy and is therefore not imported."""

MAX_ALIKE = 4
"""Most members named in a line about similar results."""

MAX_ADVICE = 5 * MAX_PRINTABLE
"""Maximum number of characters of advice to an owner: a command line with long paths must not be cut."""

PATH_WORDS = {"direct": "reached directly", "relayed": "reached through a relay", "none": "not reached now"}
"""How a member is reached, by `path` of PathOfPeer. Of neighbours those that are not reached now are tried again."""

_WHY_DROPPED = {
    "unready": "it was not ready when the first round began; a faster connection or disk helps, or a longer "
    "warmup_time of the run",
    "silent": "it sent no result of its share",
    "failed": "it sent no result, because its own training fails (see the errors before)",
    "starting": "no result of its share came, because it was starting again while that round was played",
    "late": "its results came much later than all others'; if this happens again, the machine or its connection is "
    "too slow for this run",
    "unstated": "as a witness it repeatedly did not send its statement in time",
    "lost": "its connection to the coordinator was lost for too long",
}

_POINTS_SHOWN = 8
"""Most members named in a line about points."""

_WHY_EXITED = {
    "unready": "dropped {} from this epoch: it was not ready when the first round began",
    "slow": "dropped {} from this epoch: it took part, but its result did not reach most witnesses in time; its machine or line "
    "is slower than the others'",
    "silent": "dropped {} from this epoch: neither its result nor its statement as a witness came, as from a machine that stands "
    "still or is cut off",
    "late": "dropped {} from this epoch: it sent no result, or sent it much later than all others (as after a restart)",
    "unstated": "dropped {} from this epoch: as a witness it repeatedly did not send its statement in time",
    "interrupted": "dropped {} from this epoch: no result came from it in the round that was under way when this server was "
    "started again",
    "ejected": "ejected {}: it signed two different results for one share",
    "struck": "ejected {}: checks of its work, or of what it said of others' work, failed twice in this epoch",
    "lost": "lost {}: its connection was lost, and it did not reconnect in time (--reconnect-seconds)",
    "not back": "not back yet after the server's start: {}, no longer a member until it joins again",
    "not allowed": "withdrew {}: its key is no longer in the list of allowed clients (--allow-list)",
}


_OUTCOMES = {
    "passed": "was trained",
    "guilty": "was not trained as it should; its samples are trained again",
    "false_accusation": "was trained, although the verifier said that it was not",
    "silence": "was not decided, because somebody did not show what it must",
    "undecided": "was not decided",
}


def _paths(event: events.PeerPaths) -> str:
    counts = {kind: sum(each.path == kind for each in event.peers) for kind in PATH_WORDS}
    slow = [f"{each.peer} {each.rtt_ms:.0f} ms" for each in event.peers if each.path == "relayed"][:8]
    told = paths_text(counts, over_others=event.over_others)
    return f"other members: {told}" + (f" (through a relay: {', '.join(slow)})" if slow else "")


def paths_text(counts: Mapping[str, int], *, over_others: int = 0) -> str:
    """Return how many other members are reached in which way. counts: by `path` of PathOfPeer. over_others: see PeerPaths."""
    words = [f"{counts[kind]} {word}" for kind, word in PATH_WORDS.items() if counts.get(kind)]
    return ", ".join([*words, *([f"{over_others} over others"] if over_others > 0 else [])]) or "none"


def clients_text(clients: int, *, needed: int | None = None) -> str:
    """Return how many clients there are; of how many, if a run waits for more before it starts an epoch."""
    if needed is not None and clients < needed:
        return f"{clients} of {needed} clients that are needed to start"
    return f"{clients} {'client' if clients == 1 else 'clients'}"


def describe(event: events.Event) -> str:
    """Return an event as one line without a time stamp. It is safe for a terminal, whatever text the event contains."""
    advice = isinstance(event, events.ModelLost | events.ModelContested | events.StateIsOlder)
    return printable(_sentence(event), at_most=MAX_ADVICE if advice else MAX_PRINTABLE)


def _sentence(event: events.Event) -> str:
    match event:
        case events.Started(role="server"):
            return f"serving run {event.run_id} at {event.address}"
        case events.Started():
            return f"{event.role} {event.id[:16]} has reached run {event.run_id} at {event.address}"
        case events.RelayStarted():
            return f"relay for members of this run: {event.url}"
        case events.RunContinued():
            kept = f" {event.path}" if event.path else ""
            return f"continues the run from the saved state{kept}: epoch {event.epoch}, before step {event.step}"
        case events.Joined():
            return f"joined run {event.run_id}"
        case events.WaitsForEpoch():
            return f"epoch {event.epoch} is under way; this client waits, and takes part from the next epoch on"
        case events.Dropped():
            return _dropped(event)
        case events.CameBack():
            return f"takes part in epoch {event.epoch} again"
        case events.TokenFiles():
            return _token_files(event)
        case events.Stopping(unchanged=True):
            return f"stopping before step {event.step}; nothing has happened in the run yet, so there is no state to save"
        case events.Stopping(folder=None):
            return f"stopping before step {event.step}; without --save-state-dir the run's state is lost"
        case events.Stopping():
            return (
                f"stopping before step {event.step}: the run's state is saved in {event.folder}; start the server again "
                "with this folder to continue the run"
            )
        case events.PhaseChanged():
            height = "" if event.height is None else f", round {event.height}"
            clients = clients_text(event.clients, needed=event.needed)
            return f"{event.phase}: epoch {event.epoch}, step {event.step}{height}, {clients}"
        case events.ModelLoading():
            return f"loading the model {event.model} ..."
        case events.ModelLoaded():
            return f"model of {count_text(event.parameters)} parameters ready after {event.seconds:.1f} s"
        case events.Resumed():
            return _resumed(event)
        case events.MicroBatchFound():
            return f"a micro-batch of {event.size} sequences fits into memory"
        case events.StepTrained():
            speed = event.tokens / event.seconds if event.seconds > 0 else 0.0
            return (
                f"trained step {event.step}: loss {event.loss:.4f}, {event.tokens} tokens in {event.seconds:.2f} s "
                f"({count_text(speed)}/s), result {bytes_text(event.payload_bytes)}"
            )
        case events.StepFigures():
            return _figures(event)
        case events.ResultsFetched():
            failed = f", {event.failed} downloads failed" if event.failed else ""
            size = bytes_text(event.bytes)
            return f"fetched {event.results} results of round {event.height}: {size} in {event.seconds:.2f} s{failed}"
        case events.ResultOverlaps():
            return _overlaps(event)
        case events.OptimizerStatistics():
            return _optimizer(event)
        case events.RunDescribed():
            sizes = dict.fromkeys((event.batch_size_start, event.batch_size_end))
            return (
                f"run {event.run_id} trains {event.model} with {event.optimizer}: {event.total_steps} steps of "
                f"{' to '.join(map(str, sizes))} sequences of {event.sequence_length} tokens"
            )
        case events.StepApplied(accepted=0):
            none = f"no quorum of witnesses received any of its {event.trained} results"
            return f"step {event.step} changes nothing: {none}; its samples are trained again"
        case events.StepApplied():
            return f"applied step {event.step}: {event.accepted} of {event.trained} results in {event.seconds:.2f} s"
        case events.WitnessSent():
            return f"witnessed round {event.height}" + (" early" if event.opportunistic else "")
        case events.NetworkTotals():
            return f"sent {bytes_text(event.bytes_sent)}, received {bytes_text(event.bytes_received)}, {event.peers} peers"
        case events.PeerPaths():
            return _paths(event)
        case events.EpochDigest():
            return f"epoch {event.epoch} ended after step {event.step}: parameters {event.sha256[:16]}…"
        case events.ReplicasDiffer():
            return (
                f"REPLICAS DIFFER at the end of epoch {event.epoch}: ours {event.ours[:16]}…, {event.peer} {event.theirs[:16]}…"
            )
        case events.Validated():
            return f"validation after step {event.step}: loss {event.loss:.4f}"
        case events.Evaluated():
            steps = f"step {event.step}" if event.step == event.from_step else f"steps {event.from_step} to {event.step}"
            return f"evaluation {event.task} of {steps}: {event.metric} {event.value:.4f} on {event.documents} documents"
        case events.PromptAnswered():
            return f"step {event.step} writes: {event.prompt!r} -> {event.text!r}"
        case events.CheckpointSaved():
            return f"checkpoint of step {event.step} saved in {event.path}"
        case events.JournalPublished():
            steps = f"steps {event.first_step} to {event.last_step}"
            cost = f"{bytes_text(event.size)}, copied in {event.seconds:.2f} s"
            return f"journal of {steps} published in {event.path}: {cost}"
        case events.CheckpointStored():
            return f"the model of step {event.step} is stored at {event.location}, and the run refers to it"
        case events.Resynced():
            return f"epoch {event.epoch}: our model now equals that of the other members after step {event.step}"
        case events.ModelSync():
            pieces = f"{event.pieces_done} of {event.pieces_total} pieces"
            return f"fetching the model after step {event.step}: {pieces}, {bytes_text(event.bytes_received)}"
        case events.PointsCounted():
            return _points(event)
        case events.RewardPaid():
            return f"{event.member} was paid {event.units:,} units for its work"
        case events.EpochSigned():
            return f"the members signed the model after step {event.step}: parameters {event.sha256[:16]}…"
        case events.WentBack():
            return f"WENT BACK: {_went_back(event)}"
        case events.ModelLost():
            return lost_model(event)
        case events.StateIsOlder():
            return older_state(event)
        case events.ModelContested():
            return contested_model(event)
        case events.StatementVoided():
            return f"epoch {event.epoch}, round {event.height}: {event.member} attested results of members without a share"
        case events.ShareChecked():
            return _checked(event)
        case events.MemberWithdrew():
            return f"epoch {event.epoch}: {event.member} left the run cleanly"
        case events.MemberExited():
            return f"warning: epoch {event.epoch}: {_exited(event)}"
        case events.WitnessReported():
            rate = count_text(event.tokens_per_second)
            return f"{event.member} reports of step {event.step}: loss {event.loss:.4f}, {rate} tokens/s"
        case events.ScoreReported():
            return f"{event.member} reports of step {event.step}: {event.task} {event.metric} {event.value:.4f}"
        case events.Leaving():
            last = " after saving a checkpoint" if event.saves else ""
            if event.loading:
                last = " as soon as it has loaded its model; there is nothing to save"
            return f"{event.signal}: leaving the run cleanly{last}; a second {event.signal} ends this process at once"
        case events.Problem():
            return f"{event.level}: {event.message}"
        case events.Mended():
            return event.message
        case events.Ended():
            return event.reason


def _went_back(event: events.WentBack) -> str:
    """Return from which step to which the run went back, and why."""
    model = "members' model"
    if event.from_checkpoint:
        model = f"stored checkpoint {event.checkpoint}," if event.checkpoint else "stored checkpoint,"
    to = f"the {model} after step {event.to_step}"
    if event.by_owner:
        return f"the owner returned the run from step {event.from_step} to {to}; the later steps are trained again"
    if event.by_owner is None:
        why = "its owner asked for it, or no member had a later model"
        return f"the run returned from step {event.from_step} to {to} ({why}), and trains the later steps again"

    go_on = "from" if event.from_checkpoint else "with"
    return (
        f"no member had the model after step {event.from_step}; the run continues {go_on} {to}, and trains the later steps again"
    )


def _points(event: events.PointsCounted) -> str:
    """Return the members with most points, and the number of the others."""
    most = sorted(event.accounts, key=lambda account: -account[1])[:_POINTS_SHOWN]
    shown = [f"{member} {earned:,}" + (f", slashed {slashed:,}" if slashed else "") for member, earned, slashed in most]
    rest = len(event.accounts) - len(most)
    return f"points so far: {'; '.join(shown)}" + (f"; and {rest} more members" if rest else "")


def _exited(event: events.MemberExited) -> str:
    """Return what happened to a member, as the server reports it."""
    known = _WHY_EXITED.get(event.why)
    return f"dropped {event.member}: {event.why}" if known is None else known.format(event.member)


def _checked(event: events.ShareChecked) -> str:
    outcome = _OUTCOMES.get(event.outcome, event.outcome)
    about = f"epoch {event.epoch}, round {event.height}: the share of {event.member}, checked by {event.verifier}, {outcome}"
    return about + (f"; a strike for {', '.join(event.strikes)}" if event.strikes else "")


def suspicious_overlaps(event: events.ResultOverlaps) -> tuple[events.OverlapOfResult, ...]:
    """Return the results so similar to another that people should look at them, the most similar first."""
    found = (each for each in event.results if each.score > SUSPICIOUS_OVERLAP)
    return tuple(sorted(found, key=lambda each: -each.score))


def _overlaps(event: events.ResultOverlaps) -> str:
    alike = suspicious_overlaps(event)
    if not alike:
        largest = max((each.score for each in event.results), default=0.0)
        return f"results of step {event.step}: none is like another (at most {largest:.0%} of the positions)"

    named = [
        f"{each.member[:8]}'s is {each.score:.0%} like {each.like[:8]}'s of step {each.like_step}" for each in alike[:MAX_ALIKE]
    ]
    more = f", and {len(alike) - MAX_ALIKE} more" if len(alike) > MAX_ALIKE else ""
    return f"results of step {event.step} are like others, which honest ones are not: {', '.join(named)}{more}"


def _optimizer(event: events.OptimizerStatistics) -> str:
    """Return what a step did to a group of tensors; unknown figures are left out."""
    parts = [f"weights {event.weight_norm:.4g}", f"update {event.update_norm:.4g}"]
    if event.momentum_norm is not None:
        parts.append(f"own momentum {event.momentum_norm:.4g}")
    if event.sign_agreement is not None:
        parts.append(f"{event.sign_agreement:.0%} of the signs agree")
    return f"step {event.step}, {event.group} ({count_text(event.values)} values): {', '.join(parts)}"


def _figures(event: events.StepFigures) -> str:
    """Return the figures of a step; figures that are not known yet are left out."""
    parts = [f"learning rate {event.learning_rate:.4g}", f"gradient {event.gradient_norm:.4g}"]
    if event.tokens_per_second is not None:
        parts.append(f"{count_text(event.tokens_per_second)} tokens/s by all")
    if event.efficiency is not None:
        parts.append(f"{event.efficiency:.0%} of the time trains")
    return f"step {event.step}: {', '.join(parts)}, {count_text(event.total_tokens)} tokens so far"


def _token_files(event: events.TokenFiles) -> str:
    if event.ready:
        return (
            f"token files in {event.folder} are ready: {count_text(event.tokens)} tokens from {event.of} texts in "
            f"{event.seconds:.1f} s"
        )
    if event.texts == 0:
        return f"making token files from {event.of} texts in {event.folder} (only once) ..."

    return f"making token files: {event.texts} of {event.of} texts, {count_text(event.tokens)} tokens in {event.seconds:.0f} s"


def _dropped(event: events.Dropped) -> str:
    """Return the likely reason why a client was dropped, and when it takes part again."""
    why = _WHY_DROPPED.get(event.why, event.why)
    again = "in this epoch, once its model is up to date" if event.returns else "from the next epoch on"
    return (
        f"the coordinator dropped this client from epoch {event.epoch}, round {event.height}: {why}; it takes part again {again}"
    )


def _resumed(event: events.Resumed) -> str:
    """Return the state from which a client continues, and the source of the missing results."""
    if event.again:
        moved = "the run trained further since this client read its checkpoints, so it has read them again"
        return f"{moved}: {_resumed(replace(event, again=False))}"

    if event.step is None:
        return (
            f"{event.folder} contains no checkpoint to continue from: the model after step {event.due} is downloaded "
            "from the other members or from the run's store"
        )

    if event.checkpoint is None:
        begun = f"resumed from the run's own model and the journal in {event.folder}, up to step {event.step}"
    elif event.step > event.checkpoint:
        begun = (
            f"resumed from the checkpoint of step {event.checkpoint} in {event.folder} and the journal beside it, up to step "
            f"{event.step}"
        )
    else:
        begun = f"resumed from the checkpoint of step {event.checkpoint} in {event.folder}; no journal there leads further"
    if event.step >= event.due:
        return f"{begun}; this is the members' newest common model, so nothing is downloaded from them"
    return f"{begun}; the members' newest common model is that of step {event.due}, so the difference is downloaded from them"
