"""How each cost grows with members and with the model: figures at several sizes, exponents, and a plot.

    python -m benchmarks.growth [PART ...] [--quick] [--out DIR] [--json]

    optimizer   compress, check and apply of DisTrO, and memory: 1 M to 1 B parameters, 1 to 256 senders
    mesh        real QUIC endpoints, each a process without torch: 8, 16, 32 and 64 members
    coordinator one server over TCP with 8 to 256 members, and its memory over 10,000 rounds
    handlers    how long the client's machine and the coordinator take for one event: 8 to 256 members
    overlay     a graph of bounded degree in virtual time: messages and results of 32 to 256 members
    chain       a coordinator on Solana in an SVM in this process: 8 to 256 members, and memory over 10,000 rounds
    ranks       compress and apply of DisTrO divided among 1, 2 and 4 processes of one client, and their memory

An exponent of 0 means that a cost is constant, 1 that it is proportional, 2 that it is quadratic; "at the end" is that of the two
largest sizes. Sizes that do not fit the machine's memory are left out and said. Whole: more than an hour on two cores and 20 GB
of memory. --quick: three minutes.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.children import enter_loopback
from benchmarks.growth import chain, coordinator, handlers, mesh, optimizer, overlay, ranks
from benchmarks.growth.curves import Curve, plot, table
from benchmarks.options import even, one_of, several, whole
from psyche_core.p2p.overlay import MOST_DEGREE

SENDERS, QUICK_SENDERS = (1, 8, 32, 256), (1, 8, 32)
QUICK_SIZES = ("1M", "4M", "16M")
MEMBERS, QUICK_MEMBERS = (8, 16, 32, 64), (4, 8, 12)
MANY, QUICK_MANY = (8, 32, 64, 128, 256), (8, 16)
OVERLAY_MEMBERS, QUICK_OVERLAY_MEMBERS = (32, 64, 128, 256), (34, 40)
REPORT = "growth.json"
ROUNDS, QUICK_ROUNDS = 10_000, 50
PARTS = ("optimizer", "mesh", "coordinator", "handlers", "overlay", "ranks", "chain")
OPTIONS = {
    "sizes": ("optimizer",),
    "threads": ("optimizer",),
    "degree": ("mesh",),
    "members": ("mesh", "coordinator", "handlers", "overlay", "chain"),
}
"""The parts that an option is for."""
MOST_MEMBERS = 256
"""Of a run."""


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options. Ends with a sentence if one is wrong, or changes nothing in the parts."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", type=one_of(PARTS, "part"), metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument(
        "--sizes",
        type=several(one_of(optimizer.WIDTHS, "size")),
        help=f"numbers of parameters of `optimizer` (default: {','.join(optimizer.WIDTHS)})",
    )
    parser.add_argument("--threads", type=whole(1, 1024), help="torch threads of `optimizer` (default: 2)")
    parser.add_argument(
        "--members",
        type=several(whole(2, MOST_MEMBERS)),
        help=f"numbers of members, of all parts over members (default: {','.join(map(str, MEMBERS))} of `mesh`, "
        f"{','.join(map(str, OVERLAY_MEMBERS))} of `overlay`, {','.join(map(str, MANY))} of others)",
    )
    parser.add_argument(
        "--degree", type=even(2, MOST_DEGREE), help="most neighbours of an endpoint of `mesh` (default: all are connected)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for growth.json, and of each part a table (PART.txt) and a plot; parts that were measured before stay",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    given = parser.parse_args(words)
    _refuse_useless(parser, given)
    return given


def main() -> None:
    """Measure and print."""
    given = arguments()
    if given.out is not None:
        make(given.out)
    enter_loopback("benchmarks.growth")
    sizes = given.sizes.split(",") if given.sizes else QUICK_SIZES if given.quick else tuple(optimizer.WIDTHS)
    wanted = tuple(map(int, given.members.split(","))) if given.members else ()
    members = wanted or (QUICK_MEMBERS if given.quick else MEMBERS)
    many = wanted or (QUICK_MANY if given.quick else MANY)
    ways: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[dict[str, Any]], list[Curve]]]] = {
        "optimizer": (
            lambda: optimizer.measure(sizes, QUICK_SENDERS if given.quick else SENDERS, threads=given.threads or 2, say=_say),
            optimizer.curves,
        ),
        "mesh": (lambda: mesh.measure(members, say=_say, degree=given.degree), mesh.curves),
        "coordinator": (
            lambda: coordinator.measure(many, QUICK_ROUNDS if given.quick else ROUNDS, say=_say),
            coordinator.curves,
        ),
        "handlers": (lambda: handlers.measure(many, say=_say), handlers.curves),
        "overlay": (
            lambda: overlay.measure(wanted or (QUICK_OVERLAY_MEMBERS if given.quick else OVERLAY_MEMBERS), say=_say),
            overlay.curves,
        ),
        "ranks": (
            lambda: ranks.measure(ranks.QUICK_RANKS if given.quick else ranks.RANKS, "4M" if given.quick else "64M", say=_say),
            ranks.curves,
        ),
        "chain": (
            lambda: chain.measure(many, QUICK_ROUNDS if given.quick else ROUNDS, say=_say, quick=given.quick),
            chain.curves,
        ),
    }
    report = {**earlier(given.out), "machine": platform.machine(), "python": platform.python_version()}
    for name in given.parts or ways:
        measure, curves_of = ways[name]
        figures = measure()
        curves = curves_of(figures)
        report[name] = {"figures": figures, "curves": [each.as_table() for each in curves]}
        if not given.json:
            print(f"{name}\n{table(curves)}\n")
        if given.out is not None:
            keep(given.out, name, report, curves)
    if given.json:
        print(json.dumps(report))


def _refuse_useless(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """End with a sentence if an option changes none of the parts."""
    for option, parts in OPTIONS.items():
        if getattr(given, option) is not None and not set(given.parts or PARTS) & set(parts):
            parser.error(f"--{option} changes nothing in {', '.join(given.parts)}: it is for {', '.join(parts)}")


def make(folder: Path) -> None:
    """Make the folder of --out before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.stderr.write(f"Error: --out: the folder {folder} cannot be made: {error.strerror}\n")
        raise SystemExit(2) from None


def earlier(folder: Path | None) -> dict[str, Any]:
    """What other commands have written into growth.json: their parts stay."""
    file = folder / REPORT if folder is not None else None
    if file is None or not file.exists():
        return {}
    try:
        found = json.loads(file.read_text())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        sys.stderr.write(f"Error: --out: {file} is not a report of this benchmark; choose another folder, or delete it\n")
        raise SystemExit(2)
    return found


def keep(folder: Path, name: str, report: dict[str, Any], curves: list[Curve]) -> None:
    """Write what is finished; the next part may take long."""
    unfinished = folder / f"{REPORT}.new"
    unfinished.write_text(json.dumps(report, indent=1) + "\n")
    unfinished.replace(folder / REPORT)  # an interruption leaves the earlier parts
    with (folder / f"{name}.txt").open("w") as file:
        file.write(table(curves) + "\n")
    plot(folder / f"{name}.png", curves)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: parts that are finished are in --out, if it was given; name the others to go on\n")
        sys.exit(130)
