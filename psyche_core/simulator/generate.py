"""Generates a script from a seed: a run of random shape, with faults that a run must survive.

Every generated run can recover. There are so few liars that the honest members of every epoch reach a quorum without them.
Enough members remain when some are lost for good. Less than half of the honest members are ever killed, so the masters are
never lost. Within these limits everything may strike at once.
"""

from __future__ import annotations

import random
from collections.abc import Collection

from psyche_core.simulator.script import KINDS, LIES, SERVER, SLOWING_LIES, Fault, Script, Shape, Trainer
from psyche_core.types import MAX_WITNESSES

MAX_FAULTS = 7
MAX_KINDS = 5

SEALED_EVERY = 200
"""One run in this many sends everything as bytes and signs for real, which costs as much as six others."""

LONE_EVERY = 100
"""One run in this many is a long one with one liar and no other fault, to measure what it costs the others."""

SERVER_ALONE = 0.2
"""Probability that a partition cuts the server off from all members, so that it withdraws them all, if it withdraws anybody."""

LONE_LIES = SLOWING_LIES
"""Lies of that liar."""

LONE_MEMBERS = 8
"""Fewest members of such a run."""

LONE_STEPS = 120
"""Steps of such a run: a liar may cost time when an epoch first meets it, and that must be little compared with the whole."""

_KILLS = ("crash", "restart", "late", "leave", "bit-flip")
_FOR_GOOD = ("crash", "leave")

_ONCE = ("all-die", "older-state")
"""Faults that strike once in a run."""

SLOWEST_DOWNLINK = 1.5
"""Delay of payloads on a slow downlink, in training times. From about two on, a member that alone has such a connection is not
waited for and is dropped, as protocol F16 says."""

MAX_LIARS = (MAX_WITNESSES - 1) // 3
"""If this many liars are drawn as witnesses together, the others are still a quorum."""


def generate(
    seed: int, *, clients: int = 8, rounds: int = 20, kinds: Collection[str] = KINDS, trainer: Trainer = "hash"
) -> Script:
    """The script of a seed. kinds: faults that may happen; none gives an undisturbed run."""
    rng = random.Random(f"{seed}/script")
    lone = [kind for kind in LONE_LIES if kind in kinds]
    if lone and clients >= LONE_MEMBERS and seed % LONE_EVERY == LONE_EVERY - 1:
        return lone_liar(rng.choice(lone), members=clients, seed=seed)

    chosen = _some_kinds(rng, sorted(kinds))
    members = list(range(clients))
    rng.shuffle(members)

    lies = [kind for kind in chosen if kind in LIES]
    most = min(max(1, (clients - 1) // 3), MAX_LIARS)
    liars = members[: rng.randint(1, most)] if lies and clients >= 4 else []
    honest = members[len(liars) :]
    killable = honest[: (len(honest) - 1) // 2]
    faults = [_lie(rng, node, kind, rounds) for node in liars for kind in _per_liar(rng, lies)]

    floor = 3 * len(liars) if liars else 1
    lost_for_good = min(max(0, len(honest) - max(floor, 2)), 2, len(killable))
    lost: set[int] = set()
    others = [kind for kind in chosen if kind not in LIES]
    for number in range(rng.randint(len(others), max(len(others), MAX_FAULTS)) if others else 0):
        kind = others[number] if number < len(others) else rng.choice(others)
        fault = _fault(rng, kind, members=members, killable=[node for node in killable if node not in lost], rounds=rounds)
        if fault is None:
            continue

        if kind in _ONCE and any(known.kind == kind for known in faults):
            continue
        if kind in _FOR_GOOD:
            if len(lost) >= lost_for_good:
                continue
            lost.update(fault.nodes)
        faults.append(fault)

    shape = _shape(rng, rounds, floor=floor, ceiling=len(honest) - len(lost), liars=bool(liars))
    return Script(
        seed=seed,
        clients=clients,
        rounds=rounds,
        trainer=trainer,
        sealed=seed % SEALED_EVERY == 0,
        shape=shape,
        faults=tuple(sorted(faults, key=lambda fault: (fault.start, fault.kind, fault.nodes))),
    )


def lone_liar(kind: str, *, members: int, seed: int, steps: int = LONE_STEPS) -> Script:
    """A long run with one member that lies in this way all the time: two epochs, as long as real ones."""
    shape = Shape(
        min_clients=max(members - 2, 1),
        init_min_clients=max(members - 1, 1),
        batch_start=3 * members,
        batch_end=3 * members,
        rounds_per_epoch=LONE_STEPS // 2,
        epoch_time=3600,
        max_round_train_time=6,
        round_witness_time=3,
        train_seconds=0.5,
    )
    fault = Fault(kind=kind, start=0.0, nodes=(seed % members,))
    return Script(seed=seed, clients=members, rounds=steps, shape=shape, faults=(fault,))


def cheat_script(
    kind: str, *, seed: int, members: int = 8, steps: int = LONE_STEPS, percent: int = 10, cheats: int = 1
) -> Script:
    """A run of one long epoch whose shares are checked, with members that cheat in this way, or none for the kind "".

    cheats: their number.
    """
    shape = Shape(
        min_clients=max(members - 2, 1),
        init_min_clients=members,
        batch_start=3 * members,
        batch_end=3 * members,
        rounds_per_epoch=steps,
        epoch_time=36_000,
        max_round_train_time=6,
        round_witness_time=3,
        train_seconds=0.5,
        verification_percent=percent,
    )
    faults = (Fault(kind=kind, start=0.0, nodes=tuple((seed + one) % members for one in range(cheats))),) if kind else ()
    return Script(seed=seed, clients=members, rounds=steps, shape=shape, faults=faults)


def _some_kinds(rng: random.Random, kinds: list[str]) -> list[str]:
    return rng.sample(kinds, rng.randint(1, min(MAX_KINDS, len(kinds)))) if kinds else []


def _per_liar(rng: random.Random, lies: list[str]) -> list[str]:
    return rng.sample(lies, rng.randint(1, len(lies))) if lies else []


def _shape(rng: random.Random, rounds: int, *, floor: int, ceiling: int, liars: bool) -> Shape:
    """floor: fewest members of an epoch that outnumber the liars; ceiling: members that remain in the end."""
    min_clients = rng.randint(min(floor, ceiling), ceiling)
    batch = rng.choice((3, 5, 8, 12, 16, 31))
    grown = batch + rng.choice((0, 0, 4, 20))
    warmup = rng.randint(8, 15)
    train = rng.randint(3, 8)
    return Shape(
        min_clients=min_clients,
        init_min_clients=rng.randint(min_clients, ceiling),
        witness_nodes=0 if liars else rng.choice((0, 0, rng.randint(1, min_clients))),
        batch_start=batch,
        batch_end=grown,
        batch_warmup_tokens=16 * batch * rounds // 2 if grown > batch else 0,
        rounds_per_epoch=rng.choice((rng.randint(4, 8), rng.randint(4, 8), rng.randint(1, 3))),
        epoch_time=rng.choice((600, 600, 600, rng.randint(16, 40))),
        warmup_time=warmup,
        max_round_train_time=train,
        round_witness_time=rng.randint(1, 3),
        cooldown_time=rng.randint(1, 3),
        extra_time=rng.randint(1, 3),
        withdraw_after=rng.choice((0.0, 0.0, 3.0, 8.0)),
        restart_from_checkpoint=rng.random() < 0.3,
        train_seconds=rng.choice((0.2, 0.5, 1.0)),
        link_seconds=rng.choice((0.01, 0.03, 0.08)),
    )


def _lie(rng: random.Random, node: int, kind: str, rounds: int) -> Fault:
    """A lie that begins early and mostly never ends."""
    duration = 0.0 if rng.random() < 0.7 else rng.uniform(5.0, 2.0 * rounds)
    return Fault(kind=kind, start=round(rng.uniform(0.0, 0.5 * rounds), 2), duration=round(duration, 2), nodes=(node,))


def _fault(rng: random.Random, kind: str, *, members: list[int], killable: list[int], rounds: int) -> Fault | None:
    """One fault from which the run recovers; None when no member is left for it."""
    start = round(rng.uniform(0.3, 1.3 * rounds + 6.0), 2)

    def fault(nodes: tuple[int, ...], longest: float, *, amount: float = 0.0, disk: bool = False) -> Fault:
        duration = round(rng.uniform(0.3, longest), 2)
        return Fault(kind=kind, start=start, duration=duration, nodes=nodes, amount=round(amount, 3), disk=disk)

    if kind in _KILLS:
        if not killable:
            return None

        node = (rng.choice(killable),)
        if kind == "late":
            return Fault(kind=kind, start=0.0, duration=round(rng.uniform(1.0, rounds + 5.0), 2), nodes=node)
        if kind in _FOR_GOOD:
            return Fault(kind=kind, start=start, nodes=node)
        if kind == "bit-flip":
            return Fault(kind=kind, start=start, nodes=node)
        return fault(node, 20.0, disk=rng.random() < 0.5)

    few = tuple(sorted(rng.sample(members, rng.randint(1, max(1, len(members) // 3)))))
    match kind:
        case "pause":
            return fault(few[:1], 25.0)
        case "slow":
            return fault(few, 20.0, amount=rng.uniform(2.0, 15.0))
        case "slow-downlink":
            return fault(few, 60.0, amount=rng.uniform(0.3, SLOWEST_DOWNLINK))
        case "full-disk":
            return fault(few, 60.0)
        case "skew":
            return fault(few, 40.0, amount=rng.choice((0.5, 0.8, 1.25, 2.0)))
        case "drop" | "duplicate" | "reorder":
            return fault(_all_or(rng, few), 20.0, amount=rng.uniform(0.05, 0.5))
        case "delay":
            return fault(_all_or(rng, few), 15.0, amount=rng.uniform(0.1, 3.0))
        case "partition" | "asymmetric":
            if kind == "partition" and rng.random() < SERVER_ALONE:
                return fault((SERVER,), 20.0)
            side = tuple(sorted(rng.sample(members, rng.randint(1, max(1, len(members) // 2)))))
            if rng.random() < 0.4:
                return fault(side, 15.0, amount=1.0)
            return fault((SERVER, *side) if rng.random() < 0.4 else side, 15.0)
        case "server-restart":
            return fault((SERVER,), 15.0)
        case "failing-work":
            return fault(few[:1], 10.0, amount=rng.uniform(0.02, 0.3)) if killable and few[0] in killable else None
        case "older-state":
            return fault((SERVER,), 15.0, amount=rng.choice((1.0, 4.0, rng.uniform(1.0, 60.0))))
        case "slow-rpc":
            return fault(few, 20.0, amount=rng.uniform(0.5, 6.0))
        case "failing-rpc":
            return fault(few, 20.0, amount=rng.uniform(0.1, 0.8))
        case "empty-results":
            return fault(tuple(sorted(rng.sample(members, rng.randint(1, len(members))))), 30.0, amount=rng.uniform(0.1, 1.0))
        case "all-die":
            survive = rng.choice((0, 1, 1, 2, len(members)))  # disks: of one at least in most runs
            return fault(tuple(sorted(rng.sample(members, len(members) - min(survive, len(members))))), 20.0)
        case _:
            return fault((), 15.0)


def _all_or(rng: random.Random, few: tuple[int, ...]) -> tuple[int, ...]:
    return () if rng.random() < 0.5 else few
