"""What is trained: phases, steps and their figures, evaluations of the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunDescribed:
    """What a run trains, as its coordinator says. A client emits it when it first knows it, and whenever it has changed.

    Attributes:
        model: its name in the run's configuration.
        architecture: plugin name of the model.
        optimizer: plugin name of the optimizer.
        sequence_length: in tokens.
        batch_size_start: samples of a step at first.
        batch_size_end: samples of a step after batch_size_warmup_tokens.
    """

    run_id: str
    model: str
    architecture: str
    optimizer: str
    total_steps: int
    sequence_length: int
    batch_size_start: int
    batch_size_end: int
    batch_size_warmup_tokens: int


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """The coordinator's phase as seen here.

    While the run waits for members, clients is the number of those waiting, and needed the number that an epoch needs to start.

    Attributes:
        step: next step to train.
        clients: number of healthy members of the epoch.
    """

    phase: str
    epoch: int
    step: int
    clients: int
    height: int | None = None
    needed: int | None = None


@dataclass(frozen=True, slots=True)
class MicroBatchFound:
    """How many sequences per forward pass fit into memory; emitted if the micro batch size is chosen automatically."""

    size: int


@dataclass(frozen=True, slots=True)
class StepTrained:
    """We trained our share of a step.

    Attributes:
        loss: nats per token.
        tokens: number in our share.
        seconds: wall time.
        payload_bytes: size of our result.
    """

    epoch: int
    step: int
    loss: float
    tokens: int
    seconds: float
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Further figures of a step that we trained; what covers several steps is about the newest ones of this epoch.

    Attributes:
        learning_rate: of the schedule at this step.
        perplexity: e to the power of the loss.
        confidence: 1 - loss / ln(size of the vocabulary): 0 for a model that only guesses, 1 for one that is always right.
        gradient_norm: L2 norm of our share's gradient, before any clipping.
        batch_tokens: tokens of all members' shares of this step; None if the coordinator's state no longer says it.
        total_tokens: tokens that the run has assigned so far.
        tokens_per_second: trained by all members together; None before our second step.
        efficiency: part of the time in which we trained, at most 1; None before our second step.
        wait_seconds: time since our step before, without training and applying; None before our second step.
        compress_seconds: the last part of training: making the result from gradients; None if the trainer does not say.
    """

    step: int
    learning_rate: float
    perplexity: float
    confidence: float
    gradient_norm: float
    batch_tokens: int | None
    total_tokens: int
    tokens_per_second: float | None = None
    efficiency: float | None = None
    wait_seconds: float | None = None
    compress_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ResultsFetched:
    """Downloads of other members' results that ended during a round; emitted when the round ends, if there were any.

    Attributes:
        results: number that came.
        failed: number of downloads that ended without a result; each may have been tried again.
        bytes: of the results.
        seconds: from the first download's start to the last one's end.
        idle_seconds: from then to the end of the round.
    """

    epoch: int
    height: int
    results: int
    failed: int
    bytes: int
    seconds: float
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class OptimizerStatistics:
    """What applying a step did to a group of the model's tensors, if statistics were asked for; one event for each group.

    Attributes:
        step: whose results were applied.
        group: names of the tensors, with `*` for numbers.
        values: how many values the group has.
        weight_norm: L2 norm of the weights after the step.
        update_norm: L2 norm of what the step changed, estimated from a part of the values.
        momentum_norm: L2 norm of this member's own momentum when its result of this step was made; None if it made none, or the
            optimizer has no momentum.
        sign_agreement: part of the values that moved as that momentum says, from 0 to 1, estimated likewise; 0.5 is chance. None
            also if nothing moved.
    """

    step: int
    group: str
    values: int
    weight_norm: float
    update_norm: float
    momentum_norm: float | None = None
    sign_agreement: float | None = None


@dataclass(frozen=True, slots=True)
class StepApplied:
    """Results of a step were applied.

    Attributes:
        accepted: shares that the witnesses accepted.
        trained: assigned shares.
        lost: first digits of the keys of members whose share was not accepted although others were, at most MAX_LOST of them.
        ours_lost: whether our own share is among those; None if all were accepted, or none was, and from programs that do not
            tell it.
    """

    MAX_LOST = 8
    """Most members that are named."""

    epoch: int
    step: int
    accepted: int
    trained: int
    seconds: float
    lost: tuple[str, ...] = ()
    ours_lost: bool | None = None


@dataclass(frozen=True, slots=True)
class OverlapOfResult:
    """How much a result is like another.

    Attributes:
        member: signer of its trainer, hex.
        score: largest Jaccard index of its positions and those of another result of the step or of the last 20, 0 to 1.
        like: signer of that result's trainer, hex; empty if there was none.
        like_step: of that result.
    """

    member: str
    score: float
    like: str = ""
    like_step: int | None = None


@dataclass(frozen=True, slots=True)
class ResultOverlaps:
    """How much the accepted results of a step are like others, if the optimizer can tell; once a step.

    A score above 0.3 is no proof of anything: it says whose training is worth a look. A copied result, or an old one that is sent
    again, has 1.

    Attributes:
        step: of the results.
        results: one for each accepted result whose trainer is known here; of more than 16 only random ones.
        seconds: time that comparing took, in a thread beside training.
    """

    epoch: int
    step: int
    results: tuple[OverlapOfResult, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Validated:
    """Loss on held-out text, in nats per token, of the weights after `step` trained and applied steps."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Score of a benchmark, measured while the client trained.

    Attributes:
        task: its name in lm-evaluation-harness.
        metric: the one that stands for the task, such as `acc_norm`.
        documents: number that was measured; 0 for a group of tasks that does not say.
        from_step: the last step in the weights that measured the first document.
        step: the same for the last document; training goes on meanwhile.
    """

    task: str
    metric: str
    value: float
    documents: int
    from_step: int
    step: int


@dataclass(frozen=True, slots=True)
class PromptAnswered:
    """What the model wrote after a prompt.

    Attributes:
        number: of the prompt, from 0.
        text: without the prompt.
        from_step: the last step in the weights that wrote the first token.
        step: the same for the last token.
    """

    number: int
    prompt: str
    text: str
    from_step: int
    step: int
