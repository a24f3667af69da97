"""Builds the document about a run for a page, as JSON types: everything, or only the changes since the page's version.

Text from members (names, run ids, reasons, paths) is shortened and made printable here. The page must show it as text and never
as markup. Numbers that are not finite become None.
"""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

from psyche_core.observer.buckets import Bucket, BucketSeries
from psyche_core.observer.member_view import MemberView
from psyche_core.observer.run_view import RunView
from psyche_core.text_safety import printable

FORMAT = 1
"""Version of these documents."""

NAME_CHARACTERS = 64
TEXT_CHARACTERS = 300

Document = dict[str, Any]


def run_document(view: RunView, *, since: int = 0) -> Document:
    """Return the document of a run: head, series, members without their curves, lists, news.

    since: version that the reader has; 0 for everything. A series with `reset` replaces the reader's; its rows are `[first key,
    mean, lowest, highest, weight, unix seconds]`, in the order of keys, for buckets of `width` keys. Other lists are either
    complete or absent; news are only those after `since`.
    """
    document: Document = {
        "format": FORMAT,
        "version": view.version,
        "since": since,
        "head": head(view),
        "series": {
            name: _series(series, since=since)
            for name, series in (
                ("loss", view.loss if view.trained else view.reported),
                ("validation", view.validation),
                ("accepted", view.accepted),
                ("healthy", view.healthy),
                ("sent", view.sent),
                ("received", view.received),
            )
        },
        "members": [_member(member) for member in view.roster if member.changed > since],
        "news": [
            {"n": news.version, "time": _seconds(news.time), "source": news.source, "level": news.level, "text": news.text}
            for news in view.news
            if news.version > since
        ],
    }
    if view.roster.changed > since:
        document["keys"] = [member.key for member in view.roster]
    if view.epochs_changed > since:
        document["epochs"] = [
            {
                "epoch": epoch.number,
                "first": epoch.first_step,
                "last": epoch.last_step,
                "began": _seconds(epoch.began),
                "ended": _seconds(epoch.ended),
                "clients": epoch.clients,
                "signed": epoch.signed,
                "digests": sorted((epoch.digests or {}).values(), reverse=True),
                "digest": _commonest(epoch.digests),
            }
            for _, epoch in sorted(view.epochs.items())
        ]
    if view.stages_changed > since:
        document["stages"] = [[_seconds(stage.since), printable(stage.name, at_most=NAME_CHARACTERS)] for stage in view.stages]
    if view.scores_changed > since:
        document["scores"] = [
            {"task": task, "metric": metric, "rows": [[bucket.start, _number(bucket.mean)] for bucket in series.rows()]}
            for (task, metric), series in sorted(view.scores.items())
        ]
    if view.answers_changed > since:
        document["answers"] = [
            {
                "prompt": _text(prompt),
                "answers": [{"time": _seconds(each.time), "step": each.step, "text": _text(each.text)} for each in answers],
            }
            for prompt, answers in view.answers.items()
        ]
    if view.entries_changed > since:
        document["entries"] = [
            {"time": _seconds(entry.time), "kind": entry.kind, "number": entry.number, "text": _text(entry.text)}
            for entry in view.entries
        ]
    return document


def member_document(view: RunView, key: str, *, since: int = 0) -> Document | None:
    """Return the document of one member, with its curve and news; None if there is no such member. since: see `run_document`."""
    member = view.roster.members.get(key)
    if member is None:
        return None

    names = {printable(member.name, at_most=NAME_CHARACTERS)} - {""}
    return {
        "format": FORMAT,
        "version": view.version,
        "since": since,
        "head": head(view),
        "member": _member(member),
        "series": {"loss": _series(member.losses, since=since)},
        "news": [
            {"n": news.version, "time": _seconds(news.time), "source": news.source, "level": news.level, "text": news.text}
            for news in view.news
            if news.version > since and news.source in names
        ],
    }


def losses_document(view: RunView) -> Document:
    """Return every member's loss curve, for a chart of all of them: rows of [first step, mean]."""
    return {
        "format": FORMAT,
        "version": view.version,
        "members": [
            {
                "key": member.key,
                "label": _label(member),
                "rows": [[bucket.start, _number(bucket.mean)] for bucket in member.losses.rows()],
            }
            for member in view.roster
            if len(member.losses)
        ],
    }


def head(view: RunView) -> Document:
    """Return a run in a few figures, as a list of runs shows it."""
    phase = view.phase
    members = [member.state for member in view.roster]
    reported = not view.trained and bool(len(view.reported))
    newest = _newest_loss(view.reported if reported else view.loss)
    return {
        "run_id": printable(view.run_id, at_most=NAME_CHARACTERS),
        "phase": "" if phase is None else printable(phase.phase, at_most=NAME_CHARACTERS),
        "phase_since": _seconds(view.phase_since),
        "epoch": None if phase is None else phase.epoch,
        "step": view.last_step,
        "height": None if phase is None else phase.height,
        "clients": None if phase is None else phase.clients,
        "needed": None if phase is None else phase.needed,
        "total_steps": view.total_steps,
        "first": _seconds(view.first),
        "newest": _seconds(view.newest),
        "silent": view.silent,
        "tokens": view.tokens,
        "tokens_per_second": round(sum(member.tokens_per_second for member in view.roster if member.state == "healthy")),
        "parameters": view.parameters,
        "loss": newest,
        "reported": reported,
        "validation": None if view.newest_validation is None else [view.newest_validation[0], _number(view.newest_validation[1])],
        "members": len(members),
        "healthy": members.count("healthy"),
        "sent": sum(member.sent for member in view.roster),
        "received": sum(member.received for member in view.roster),
        "differ": view.differ,
        "ended": None if view.ended is None else {"reason": _text(view.ended.reason), "success": view.ended.success},
    }


def outline(view: RunView, *, points: int = 60) -> list[float]:
    """Return the loss curve in few points, for a list of runs: means of equal parts, oldest first."""
    means = [bucket.mean for bucket in (view.loss if view.trained else view.reported).rows() if bucket.mean is not None]
    count = min(points, len(means))
    edges = [index * len(means) // count for index in range(count + 1)] if count else []
    return [round(statistics.fmean(means[first:last]), 4) for first, last in itertools.pairwise(edges)]


def _member(member: MemberView) -> Document:
    return {
        "key": member.key,
        "label": _label(member),
        "id": printable(member.id, at_most=NAME_CHARACTERS),
        "state": member.state,
        "spans": [[_seconds(span.since), span.state, _text(span.why)] for span in member.spans],
        "step": member.step,
        "loss": _number(member.loss),
        "tokens": member.tokens,
        "tokens_per_second": round(member.tokens_per_second, 1),
        "payload_bytes": member.payload_bytes,
        "parameters": member.parameters,
        "sent": member.sent,
        "received": member.received,
        "peers": member.peers,
        "over_others": member.over_others,
        "digest": None if member.digest is None else [member.digest[0], printable(member.digest[1], at_most=NAME_CHARACTERS)],
        "earned": member.earned,
        "slashed": member.slashed,
        "paid": member.paid,
        "checks": member.checks,
        "strikes": member.strikes,
        "overlap": None if member.overlap is None else _number(member.overlap[1]),
        "starts": member.starts,
        "problems": member.problems,
        "heard": _seconds(member.heard),
    }


def _series(series: BucketSeries, *, since: int) -> Document:
    return {
        "width": series.width,
        "reset": since == 0 or series.reshaped > since,
        "rows": [_row(bucket) for bucket in series.rows(since=since)],
    }


def _row(bucket: Bucket) -> list[float | int | None]:
    return [
        bucket.start,
        _number(bucket.mean),
        _number(bucket.low),
        _number(bucket.high),
        round(bucket.weight),
        _seconds(bucket.time),
    ]


def _label(member: MemberView) -> str:
    return printable(member.name, at_most=NAME_CHARACTERS) or printable(member.id[:8], at_most=NAME_CHARACTERS)


def _newest_loss(series: BucketSeries) -> float | None:
    newest = series.newest
    return None if newest is None else _number(newest.mean)


def _commonest(digests: dict[str, int] | None) -> str:
    return "" if not digests else printable(max(digests, key=lambda digest: digests[digest])[:16], at_most=NAME_CHARACTERS)


def _text(text: str) -> str:
    return printable(text, at_most=TEXT_CHARACTERS)


def _seconds(time: float | None) -> float | None:
    return None if time is None else round(time, 1)


def _number(value: float | None) -> float | None:
    """Round to five digits after the point, which is enough for a curve; None for None and values that are not finite."""
    return None if value is None or not math.isfinite(value) else round(value, 5)
