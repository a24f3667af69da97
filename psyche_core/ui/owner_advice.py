"""Sentences about events after which the run's owner or its members have to decide: what happened, and the commands to use.

The commands contain what the event tells (the run, the step, the server's own command line); other values are placeholders in
capitals.
"""

from __future__ import annotations

import shlex

from psyche_core.telemetry.events import ModelContested, ModelLost, StateIsOlder

_SHOWN_MEMBERS = 8


def lost_model(event: ModelLost) -> str:
    """Return advice if no present member has the model: restore a newer state or search a disk; only then accept the loss."""
    where = f"the model after step {event.step} or that of an earlier epoch's end"
    lost = f"THE MODEL IS LOST: in this warmup no member had {where}, and"
    if not event.to_owner:
        return (
            f"{lost} the run is paused until its owner resumes it. If the owner put an older copy of the run's state in place, "
            "the newest one brings everything back. If you have a checkpoint or journal of this run on a disk, start a client "
            "with that --checkpoint-dir and tell the run's owner. Otherwise there is nothing to do: this client waits, and takes "
            "part when the run goes on"
        )

    disk = "a member that is away, or still loads it, may have it on its disk, as a checkpoint or journal"
    if event.away:
        shown, more = event.away[:_SHOWN_MEMBERS], len(event.away) - _SHOWN_MEMBERS
        others = f" and {more} more" if more > 0 else ""
        disk += f" (members that trained and are not here: {', '.join(shown)}{others})"
    ask = f"let the run ask its members again ({event.ask_again})" if event.ask_again else "resume the run"
    end = "start the run anew: this server keeps no state (--save-state-dir)"
    if event.begin_again:
        stored = f"the one after step {event.stored_step}" if event.stored_step else "step 0, the beginning of the run"
        end = (
            f"stop the server (Ctrl-C or SIGTERM) and start it once with `{event.begin_again}`: all training since the stored "
            f"checkpoint ({stored}) is lost"
        )
        if event.begin_again.startswith("psyche server run"):
            end += (
                ". If a member still has an older checkpoint of the run, add `--checkpoint file:///FOLDER` with its folder: the "
                "run then begins with these weights, and counts steps from 1"
            )
    none = "no such state or disk" if event.state_dir else "no such disk"
    return (
        f"{lost} the run is paused. {_newer_state(event)}{disk[0].upper()}{disk[1:]}. Start its client with that "
        f"--checkpoint-dir, then {ask}, as often as needed. Only if {none} is left, {end}"
    )


def _newer_state(event: ModelLost) -> str:
    """Return what to do first if the server may have continued from an older state, because members may have the newer model."""
    if not event.state_dir:
        return ""

    after = f"before step {event.known_step}"
    if event.later_path is not None:
        state = event.later_path.removesuffix(".later")
        return (
            f"This server continued from an older state, and a later one ({after}) is here: first stop the server, rename "
            f"{event.later_path} to {state}, or put a still newer copy there, and start it again; nothing is lost then. "
            "Otherwise: "
        )

    copy = f"stop the server, put the newest state back into {event.state_dir}, and start it again; nothing is lost then"
    if event.known_step is not None:
        return f"This server continued from an older state than its members knew ({after}): first {copy}. Otherwise: "
    return f"If the state in {event.state_dir} is an older copy, first {copy}. Otherwise: "


def contested_model(event: ModelContested) -> str:
    """Return advice if so few members offer the model that they may be lying."""
    run = shlex.quote(event.run_id)
    back = "the owner cannot return the run, for no epoch's end is signed: wait for more members, or start the run anew"
    if event.signed_step is not None:
        again = event.signed_step + 1
        back = (
            f"the owner can return the run to the signed step {event.signed_step}. With a server: pause the run "
            f"(kill -USR1 PID), stop the server, and start it once with `psyche server run --state FILE --save-state-dir FOLDER "
            f"--restart-from-step {again}`. On Solana: `psyche run-manager set-paused -r {run}`, and once the run is paused "
            f"`psyche run-manager update-config -r {run} --restart-from-step {again}` and "
            f"`psyche run-manager set-paused -r {run} --resume`"
        )
    if event.taken:
        return (
            f"warning: the model after step {event.step} is the word of {event.offering} of {event.members} members: no quorum "
            f"signed it, and no other member offers one, so this client takes it. If they may be lying, {back}"
        )

    back = back if event.signed_step is None else f"To decide at once, {back}"
    then = "if the next warmup ends so, too, the run goes back to the newest signed step that a member has"
    return (
        f"THE MODEL IS CONTESTED: members offer different models after step {event.step}, no quorum signed one of them, and at "
        f"most {event.offering} of {event.members} members offer the same, so they may be lying; this client takes none until "
        f"more members agree{f'; {then}' if event.starts else ''}. A member with a disk of this run helps: "
        f"`psyche client train --run-id {run} --checkpoint-dir FOLDER`. {back[0].upper()}{back[1:]}"
    )


def older_state(event: StateIsOlder) -> str:
    """Return advice for a server that was restored from an older state.

    A state may be older than one with an earlier position, if the run went back in between. A later position may also come from
    training that continued from an older state until the owner restored the newest one.
    """
    went_back = event.known_step < event.step or (event.known_epoch, event.known_step) <= (event.epoch, event.step)
    was = "had gone back since, and was" if went_back else "was"
    if event.member is None:
        has = "is of after the run went back, and is" if went_back else "is"
        other = f"a state in the same folder {has} in epoch {event.known_epoch}, step {event.known_step}"
        go_on = f"to continue from that one, stop this server now, rename {event.later_path} to {event.path}, and start it again"
    else:
        other = f"member {event.member} says that the run {was} in epoch {event.known_epoch}, step {event.known_step}"
        go_on = f"if you have a newer state, stop this server now, put it in place of {event.path}, and start it again"
    return (
        f"THE STATE IS OLDER than the run: this server continues in epoch {event.epoch}, before step {event.step}, but {other}. "
        "If you have just put the newest state back, all is well: that position is of what was trained from an older one. "
        f"Otherwise, {go_on}. If you want to continue from the older one, do nothing: members start again from their disks, and "
        "what came later is trained again. If they no longer have a model that old, the run pauses and asks you what to do; the "
        "newer state then still brings everything back"
    )
