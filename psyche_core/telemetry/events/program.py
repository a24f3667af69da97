"""The life of a program that takes part in a run or hosts it: its start, its end, problems."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Started:
    """The program has started.

    A client is not yet a member then: see Joined.

    Attributes:
        role: `client` or `server`.
        id: signer in hex.
        address: where it listens, or the server it uses.
        total_steps: of the run, if the program knows it.
    """

    role: str
    id: str
    run_id: str
    address: str
    total_steps: int | None = None


@dataclass(frozen=True, slots=True)
class RelayStarted:
    """The server also runs a relay. url: that members are given."""

    url: str


@dataclass(frozen=True, slots=True)
class RunContinued:
    """The server continues a run that an earlier server saved.

    Attributes:
        epoch: the epoch in which the run continues.
        step: the next step to train.
        path: file with the saved state, empty if the backend keeps none.
    """

    epoch: int
    step: int
    path: str


@dataclass(frozen=True, slots=True)
class TokenFiles:
    """Token files are made from text, once. Emitted before the first text, at intervals, and when they are ready.

    Attributes:
        texts: number done.
        of: number in all.
        tokens: made so far.
        seconds: since the start.
    """

    folder: str
    texts: int
    of: int
    tokens: int
    seconds: float
    ready: bool = False


@dataclass(frozen=True, slots=True)
class Stopping:
    """A signal ends the server before the run is finished.

    Attributes:
        step: next step to train.
        folder: folder of the saved state from which a restarted server continues the run; None if no state is saved.
        unchanged: whether nothing has happened in the run yet, so that there is no state to save.
    """

    step: int
    folder: str | None
    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class Leaving:
    """A signal asked the client to leave, and it now leaves cleanly.

    Attributes:
        saves: whether it saves a last checkpoint.
        loading: whether it has no model yet: it cannot end before what loads one is through, and saves nothing.
    """

    signal: str
    saves: bool
    loading: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that users should know; the run continues.

    Attributes:
        level: `warning` or `error`.
    """

    level: str
    message: str


@dataclass(frozen=True, slots=True)
class Mended:
    """A problem reported by a Problem event or a logged warning is over.

    Attributes:
        message: one sentence.
    """

    message: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The program has ended.

    Attributes:
        reason: one sentence.
        success: whether the run (or our part in it) ended as planned.
    """

    reason: str
    success: bool
