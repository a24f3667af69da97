"""Who takes part in an epoch, and what members earn: reported by a member of itself, or by the server of all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Joined:
    """The coordinator accepted our request to take part. A client joins once its resources are ready; emitted once."""

    run_id: str


@dataclass(frozen=True, slots=True)
class WaitsForEpoch:
    """We joined during an epoch and take part from the next one on. Emitted once per epoch.

    Attributes:
        epoch: the current one.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The coordinator dropped us from the current epoch.

    Attributes:
        height: the round in which this happened.
        why: the likely reason: `unready` (we were not ready when the first round began), `silent` (we sent no result), `late`
            (our results arrived much later than all others, protocol F16), `failed` (our own training failed), `unstated` (as a
            witness we repeatedly did not send our statement in time), `lost` (our connection to the coordinator was lost for too
            long), `starting` (this client began in the middle of the epoch, as after a restart, and had trained nothing of it).
        returns: whether we may take part again in this epoch, once our model is up to date; otherwise in the next one.
    """

    ROUNDS_AFTER = 2
    """Rounds after the one whose result is missing, in which its member is dropped."""

    epoch: int
    height: int
    why: str
    returns: bool


@dataclass(frozen=True, slots=True)
class CameBack:
    """We take part again in an epoch from which we were dropped."""

    epoch: int


@dataclass(frozen=True, slots=True)
class MemberWithdrew:
    """A member left the epoch cleanly, on request.

    Attributes:
        member: first digits of its key.
    """

    epoch: int
    member: str


@dataclass(frozen=True, slots=True)
class MemberExited:
    """The coordinator no longer counts on a member in this epoch. member: first digits of its key.

    why: `unready` (it was not ready when the first round began), `slow` (it took part, but its result did not reach most
    witnesses in time), `silent` (neither its result nor its statement as a witness came), `late` (one of these, it is not known
    which: it sent no result, or much later than all others), `unstated` (as a witness it repeatedly did not send its statement in
    time), `interrupted` (no result came in a round that was under way when the server was started again), `ejected` (it signed
    two different results for one share), `struck` (ejected too: checks found twice that it had not done its work), `lost` (its
    connection was lost for too long), `not back` (it has not connected since the server continued the run), `not allowed` (its
    key is no longer in the list of allowed clients).
    """

    epoch: int
    member: str
    why: str


@dataclass(frozen=True, slots=True)
class StatementVoided:
    """A witness claimed results of members without a share; its statement is ignored.

    Attributes:
        member: first digits of its key.
    """

    epoch: int
    height: int
    member: str


@dataclass(frozen=True, slots=True)
class ShareChecked:
    """A challenge of a member's share has ended (`verification_percent`). The server and every member that saw it end tell this.

    Attributes:
        height: round of the share.
        member: first digits of the key of who trained it.
        verifier: of who recomputed it.
        outcome: `passed`, `guilty` (it was not trained), `false_accusation` (it was, and the verifier said that it was not),
            `silence` (somebody did not show what it must), `undecided`.
        strikes: first digits of the keys of members that got a strike; the second in an epoch ejects.
    """

    epoch: int
    height: int
    member: str
    verifier: str
    outcome: str
    strikes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WitnessSent:
    """The coordinator accepted our witness statement of a round."""

    epoch: int
    height: int
    opportunistic: bool


@dataclass(frozen=True, slots=True)
class WitnessReported:
    """Figures of its own training that a witness sent the coordinator with its statement. Nobody has verified them.

    member: first digits of its key. step: of the round before. loss: nats per token.
    """

    member: str
    step: int
    loss: float
    tokens_per_second: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class ScoreReported:
    """Score of a benchmark that a witness measured and sent the coordinator with its statement. Nobody has verified it.

    Attributes:
        member: first digits of its key.
        task: name of the benchmark in lm-evaluation-harness.
        metric: the one that stands for the task, such as `acc_norm`.
        documents: number that was measured; 0 if it does not say.
        step: the last step in the weights that measured the last document.
    """

    member: str
    task: str
    metric: str
    value: float
    documents: int
    step: int


@dataclass(frozen=True, slots=True)
class PointsCounted:
    """What members have earned and were slashed over the whole run changed, as at the end of an epoch that pays.

    Attributes:
        epoch: the present one.
        accounts: for each member that changed: its signer's first 8 hex digits, points earned, points slashed.
    """

    epoch: int
    accounts: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class RewardPaid:
    """A member was paid its earnings in the run.

    Attributes:
        member: its signer's first 8 hex digits.
        units: smallest units of the token.
    """

    member: str
    units: int
