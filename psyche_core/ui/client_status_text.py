"""The status of one client as lines of text, for `psyche client status`. The content comes from `observer.client_status`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from psyche_core.ui.event_text import PATH_WORDS, clients_text, paths_text
from psyche_core.ui.formatting import bytes_text, count_text, duration_text

QUIET_SECONDS = 120.0
"""A running client writes an event at least every half minute."""


def status_lines(document: Mapping[str, Any], *, now: float | None = None) -> list[str]:
    """Return a document of `observer.client_status.ClientStatus` as lines for people. now: unix seconds; default: the present."""
    now = time.time() if now is None else now
    rows = [
        ("run", f"{document['run_id'] or 'unknown'}, client {document['id'][:16] or 'unknown'}"),
        ("place", _place(document, now)),
        ("phase", _phase(document)),
        ("step", _step(document)),
        ("traffic", f"sent {bytes_text(document['bytes_sent'])}, received {bytes_text(document['bytes_received'])}"),
        ("members", _members(document, now)),
    ]
    lines = [f"{name + ':':<12} {value}" for name, value in rows]
    width = max((len(peer["peer"]) for peer in document["peers"]), default=0)
    for peer in document["peers"]:
        rtt = "" if peer["rtt_ms"] is None else f"{peer['rtt_ms']:.0f} ms"
        rates = f"sent {bytes_text(peer['sent_per_second'])}/s, received {bytes_text(peer['received_per_second'])}/s"
        lines.append(f"  {peer['peer']:<{width}}  {peer['path']:<7}  {rtt:>7}  {rates}")
    for each in document.get("alike") or ():
        like = f"{each['score']:.0%} like {each['like'][:8]}'s of step {each['like_step']}"
        lines.append(f"{'alike:':<12} {each['member'][:8]}'s result of step {each['step']} is {like}; honest ones are not")
    for name, word in (("checkpoint", "path"), ("stored", "location")):
        if document[name] is not None:
            saved = document[name]
            lines.append(f"{name + ':':<12} after step {saved['step']}, {_ago(saved['time'], now)}: {saved[word]}")
    if document["checkpoint"] is None and document["stored"] is None:
        lines.append(f"{'checkpoint:':<12} none yet")
    if document["problem"] is not None:
        lines.append(f"{'problem:':<12} {_ago(document['problem']['time'], now)}: {document['problem']['text']}")
    newest = document["newest"]
    if newest is not None:
        quiet = now - newest > QUIET_SECONDS and document["place"] not in ("finished", "failed", "ejected")
        lines.append(f"{'last event:':<12} {_ago(newest, now)}{'; the client may have stopped' if quiet else ''}")
    return lines


def _place(document: Mapping[str, Any], now: float) -> str:
    if document["place"] is None:
        return "unknown"

    why = f": {document['place_why']}" if document["place_why"] else ""
    return f"{document['place']}, for {duration_text(max(0.0, now - document['place_since']))}{why}"


def _phase(document: Mapping[str, Any]) -> str:
    if document["phase"] is None:
        return "unknown"

    height = "" if document["round"] is None else f", round {document['round']}"
    clients = clients_text(document["clients"], needed=document.get("needed"))
    return f"{document['phase']}, epoch {document['epoch']}{height}, {clients}"


def _step(document: Mapping[str, Any]) -> str:
    total = "" if document["total_steps"] is None else f" of {document['total_steps']}"
    loss = "" if document["loss"] is None else f", loss {document['loss']:.3f} at step {document['trained_step']}"
    rate = f", {count_text(document['tokens_per_second'])} tokens/s" if document["tokens_per_second"] else ""
    return f"{document['step']}{total}{loss}{rate}"


def _members(document: Mapping[str, Any], now: float) -> str:
    if document["peers_at"] is None:
        return "nothing told of the paths to them yet"

    counts = {path: sum(peer["path"] == path for peer in document["peers"]) for path in PATH_WORDS}
    over_others = document["over_others"]
    told = paths_text(counts, over_others=over_others) if document["peers"] or over_others else "no others"
    return f"{told} ({_ago(document['peers_at'], now)})"


def _ago(moment: float, now: float) -> str:
    return f"{duration_text(max(0.0, now - moment))} ago"
