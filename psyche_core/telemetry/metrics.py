"""Named figures of a program: one table for Prometheus, OpenTelemetry and trackers, and what events say about each of them.

METRICS is the table; docs/reference/metrics.md shows it. `MetricBook` takes events and holds the current values. Pure: no I/O, no
clock; not thread-safe. Memory is bounded: a metric has at most MAX_SERIES sets of labels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from psyche_core.telemetry import events as telemetry

MAX_SERIES = 512
"""Sets of labels that one metric may have; further ones are left out."""

_NOT_IN_KEYS = re.compile(r"[^a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure.

    Attributes:
        name: as in Prometheus and OpenTelemetry, without `_total`.
        kind: a counter only grows while the program runs.
        help: what it is, with its unit.
        key: what trackers call it, with `{label}` for labels; empty for one that trackers do not get.
        labels: names of its labels.
    """

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    key: str = ""
    labels: tuple[str, ...] = ()


def _gauge(name: str, key: str, help: str, *labels: str) -> Metric:  # noqa: A002  # Prometheus' word
    return Metric(f"psyche_{name}", "gauge", help, key, labels)


def _counter(name: str, key: str, help: str, *labels: str) -> Metric:  # noqa: A002
    return Metric(f"psyche_{name}", "counter", help, key, labels)


_TABLE = (
    _gauge("info", "", "always 1; who this program is", "role", "run_id", "id"),
    _gauge("run_info", "", "always 1; what the run trains", "model", "architecture", "optimizer"),
    _gauge("phase", "", "1 for the coordinator's phase", "phase"),
    _gauge("epoch", "coordinator/epoch", "number of ended epochs"),
    _gauge("step", "coordinator/step", "next step of the run"),
    _gauge("total_steps", "", "steps of the whole run"),
    _gauge("round", "coordinator/round", "number of the round in its epoch"),
    _gauge("clients", "coordinator/num_clients", "healthy members of the epoch, or members that wait for it"),
    _gauge("training_loss", "train/loss", "loss of our newest share, in nats per token"),
    _gauge("training_perplexity", "train/perplexity", "e to the power of that loss"),
    _gauge("training_confidence", "train/confidence", "1 - loss / ln(vocabulary): 0 for guessing, 1 for always right"),
    _gauge("learning_rate", "train/lr", "learning rate of our newest step"),
    _gauge("gradient_norm", "train/gradient_norm", "L2 norm of our newest gradient, before clipping"),
    _gauge("optimizer_weight_norm", "optim/{group}/weight_norm", "L2 norm of a group of tensors (--optim-stats-steps)", "group"),
    _gauge("optimizer_update_norm", "optim/{group}/update_norm", "L2 norm of what the newest such step changed in it", "group"),
    _gauge("optimizer_momentum_norm", "optim/{group}/momentum_norm", "L2 norm of our own momentum of it", "group"),
    _gauge(
        "optimizer_sign_agreement",
        "optim/{group}/sign_agreement",
        "part of its values that moved as our own momentum says, from 0 to 1",
        "group",
    ),
    _gauge("total_tokens", "train/total_tokens", "tokens that the run has assigned so far"),
    _gauge("token_batch_size", "train/global_token_batch_size", "tokens of all members in one step"),
    _gauge("tokens_per_second", "train/tokens_per_sec", "tokens that all members train in a second"),
    _gauge("own_tokens_per_second", "train/own_tokens_per_sec", "tokens that we train in a second of training"),
    _gauge("training_efficiency", "train/efficiency", "part of the time in which we train, from 0 to 1"),
    _gauge("last_train_time_seconds", "time/train", "seconds of training of our newest step"),
    _gauge("last_compress_time_seconds", "time/compress", "seconds of it in which the result was made from gradients"),
    _gauge("last_fetch_time_seconds", "time/fetch", "seconds in which the results of the newest ended round were fetched"),
    _gauge("last_apply_time_seconds", "time/apply", "seconds of applying the newest results"),
    _gauge("last_wait_time_seconds", "time/wait", "seconds between our two newest steps without training and applying"),
    _gauge("result_bytes", "p2p/result_bytes", "size of our newest result"),
    _gauge("parameters", "", "trainable values of the model"),
    _counter("steps_trained", "", "steps of which we trained a share"),
    _counter("tokens_trained", "train/own_tokens", "tokens that we trained"),
    _counter("steps_applied", "", "steps whose results we applied"),
    _counter("results_accepted", "", "shares in applied steps that the witnesses accepted"),
    _counter("results_lost", "p2p/results_lost", "shares in applied steps that the witnesses did not accept"),
    _counter("witnesses_sent", "p2p/witnesses_sent", "witness statements that the coordinator accepted", "type"),
    _gauge("validation_loss", "validation/loss", "loss on held-out text, in nats per token"),
    _gauge("eval_metrics", "eval/{task}/{metric}", "newest score of a benchmark", "task", "metric"),
    _gauge("peer_connections", "p2p/peers", "connected peers"),
    _counter("bytes_sent", "p2p/bytes_sent", "bytes sent by the transport between members"),
    _counter("bytes_received", "p2p/bytes_received", "bytes received by it"),
    _counter("broadcasts_sent", "p2p/broadcasts_sent", "messages sent to all members"),
    _counter("messages_received", "p2p/messages_received", "messages of other members that were taken in"),
    _counter("messages_refused", "p2p/messages_refused", "messages of other members that were not what they must be"),
    _counter("downloads_started", "p2p/downloads_started", "results of other members that we began to fetch"),
    _counter("downloads_finished", "p2p/downloads_finished", "results of other members that we fetched"),
    _counter("downloads_failed", "p2p/downloads_failed", "results of other members that we did not get"),
    _counter("download_bytes", "p2p/download_bytes", "bytes of fetched results"),
    _gauge("peer_round_trip_seconds", "p2p/round_trip/{peer}", "seconds of a packet to a member and back", "peer", "path"),
    _gauge("peer_paths", "p2p/paths/{path}", "members by how they are reached: direct, relayed, none or over_others", "path"),
    _counter("epochs_closed", "", "epochs whose end we reached with everything applied"),
    _counter("checkpoints_saved", "", "checkpoints saved on our disk"),
    _counter("checkpoints_stored", "", "models that we stored for the run"),
    _counter("drops", "p2p/drops", "times that the coordinator dropped us from an epoch"),
    _counter("resyncs", "p2p/resyncs", "times that we took the model from other members"),
    _counter("replicas_differ", "", "members whose model differed from ours at an epoch's end"),
    _counter("problems", "", "problems that people were told of", "level"),
    _gauge("member_loss", "", "server: newest loss that a witness reports of itself; not verified", "member"),
    _gauge("member_tokens_per_second", "", "server: speed that a witness reports of itself; not verified", "member"),
    _counter("member_exits", "", "server: members that it no longer counted on", "why"),
)
METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _TABLE})
"""Every metric by name."""

_SHARED_NETWORK_FIELDS = (
    *("bytes_sent", "bytes_received", "broadcasts_sent", "messages_received", "messages_refused"),
    *("downloads_started", "downloads_finished", "downloads_failed", "download_bytes"),
)
"""Fields of NetworkTotals that are counters under the same name."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric. labels: values, in the order of the metric's label names."""

    metric: Metric
    labels: tuple[str, ...]
    value: float

    @property
    def key(self) -> str:
        """What trackers call it."""
        named = dict(zip(self.metric.labels, map(_in_key, self.labels), strict=True))
        return self.metric.key.format(**named)


@dataclass(slots=True)
class _Series:
    """The values of a metric by its labels."""

    values: dict[tuple[str, ...], float] = field(default_factory=dict)


class MetricBook:
    """The current values. A figure that is not known, or not finite, has no value."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}
        self._changed: dict[tuple[str, tuple[str, ...]], None] = {}

    def handle(self, event: telemetry.Event) -> None:
        """Enter an event of this program."""
        match event:
            case telemetry.Started():
                self._only("info", event.role, event.run_id, event.id)
                self._set("total_steps", event.total_steps)
            case telemetry.RunDescribed():
                self._only("run_info", event.model, event.architecture, event.optimizer)
                self._set("total_steps", event.total_steps)
            case telemetry.PhaseChanged():
                self._note_phase(event)
            case telemetry.ModelLoaded():
                self._set("parameters", event.parameters)
            case telemetry.StepTrained():
                self._note_trained(event)
            case telemetry.StepFigures():
                self._note_figures(event)
            case telemetry.ResultsFetched():
                self._set("last_fetch_time_seconds", event.seconds)
            case telemetry.OptimizerStatistics():
                for name in ("weight_norm", "update_norm", "momentum_norm", "sign_agreement"):
                    self._set(f"optimizer_{name}", getattr(event, name), event.group)
            case telemetry.StepApplied():
                self._note_applied(event)
            case telemetry.WitnessSent():
                self._add("witnesses_sent", 1, "early" if event.opportunistic else "usual")
            case telemetry.Validated():
                self._set("validation_loss", event.loss)
            case telemetry.Evaluated():
                self._set("eval_metrics", event.value, event.task, event.metric)
            case telemetry.NetworkTotals():
                self._set("peer_connections", event.peers)
                for name in _SHARED_NETWORK_FIELDS:
                    self._set(name, getattr(event, name))
            case telemetry.PeerPaths():
                self._note_paths(event)
            case telemetry.WitnessReported():
                self._set("member_loss", event.loss, event.member)
                self._set("member_tokens_per_second", event.tokens_per_second, event.member)
            case _:
                self._count(event)

    def samples(self) -> Iterator[Sample]:
        """All values, in the order of the table."""
        for metric in _TABLE:
            series = self._series.get(metric.name)
            for labels, value in () if series is None else series.values.items():
                yield Sample(metric, labels, value)

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """The values of a metric by its labels, a copy."""
        series = self._series.get(name)
        return {} if series is None else dict(series.values)

    def value(self, name: str, *labels: str) -> float | None:
        """The value of a metric, None if it is not known."""
        series = self._series.get(name)
        return None if series is None else series.values.get(labels)

    def take_changed(self, prefix: str = "") -> dict[str, float]:
        """The values that were set since they were taken last, by the keys of trackers; only keys that begin with `prefix`."""
        taken = {}
        for name, labels in [changed for changed in self._changed if METRICS[changed[0]].key.startswith(prefix)]:
            del self._changed[name, labels]
            value = self.value(name, *labels)
            if value is not None:
                taken[Sample(METRICS[name], labels, value).key] = value
        return taken

    # ---- parts of handle

    def _note_phase(self, event: telemetry.PhaseChanged) -> None:
        self._only("phase", event.phase)
        self._set("epoch", event.epoch)
        self._set("step", event.step)
        self._set("round", event.height)
        self._set("clients", event.clients)

    def _note_trained(self, event: telemetry.StepTrained) -> None:
        self._set("training_loss", event.loss)
        self._set("last_train_time_seconds", event.seconds)
        self._set("result_bytes", event.payload_bytes)
        self._set("own_tokens_per_second", event.tokens / event.seconds if event.seconds > 0 else None)
        self._add("steps_trained", 1)
        self._add("tokens_trained", event.tokens)

    def _note_figures(self, event: telemetry.StepFigures) -> None:
        for name, value in (
            ("learning_rate", event.learning_rate),
            ("training_perplexity", event.perplexity),
            ("training_confidence", event.confidence),
            ("gradient_norm", event.gradient_norm),
            ("token_batch_size", event.batch_tokens),
            ("total_tokens", event.total_tokens),
            ("tokens_per_second", event.tokens_per_second),
            ("training_efficiency", event.efficiency),
            ("last_wait_time_seconds", event.wait_seconds),
            ("last_compress_time_seconds", event.compress_seconds),
        ):
            self._set(name, value)

    def _note_applied(self, event: telemetry.StepApplied) -> None:
        self._set("last_apply_time_seconds", event.seconds)
        self._add("steps_applied", 1)
        self._add("results_accepted", event.accepted)
        self._add("results_lost", max(0, event.trained - event.accepted))

    def _note_paths(self, event: telemetry.PeerPaths) -> None:
        """Peers that are gone have no series any more."""
        self._clear("peer_round_trip_seconds")
        self._clear("peer_paths")
        counts = dict.fromkeys(("direct", "relayed", "none"), 0)
        for peer in event.peers:
            counts[peer.path] = counts.get(peer.path, 0) + 1
            if peer.path != "none" and peer.rtt_ms > 0:
                self._set("peer_round_trip_seconds", peer.rtt_ms / 1000, peer.peer, peer.path)
        for path, count in counts.items():
            self._set("peer_paths", count, path)
        self._set("peer_paths", event.over_others, "over_others")

    def _count(self, event: telemetry.Event) -> None:
        match event:
            case telemetry.EpochDigest():
                self._add("epochs_closed", 1)
            case telemetry.CheckpointSaved():
                self._add("checkpoints_saved", 1)
            case telemetry.CheckpointStored():
                self._add("checkpoints_stored", 1)
            case telemetry.Dropped():
                self._add("drops", 1)
            case telemetry.Resynced():
                self._add("resyncs", 1)
            case telemetry.ReplicasDiffer():
                self._add("replicas_differ", 1)
            case telemetry.Problem():
                self._add("problems", 1, event.level)
            case telemetry.MemberExited():
                self._add("member_exits", 1, event.why)

    # ---- values

    def _set(self, short: str, value: float | None, *labels: str) -> None:
        """Set a value; one that is not known or not finite leaves none."""
        name = f"psyche_{short}"
        series = self._series.setdefault(name, _Series())
        if value is None or not math.isfinite(value):
            series.values.pop(labels, None)
            return
        if labels not in series.values and len(series.values) >= MAX_SERIES:
            return

        series.values[labels] = value
        if METRICS[name].key:
            self._changed[name, labels] = None

    def _add(self, short: str, amount: float, *labels: str) -> None:
        self._set(short, (self.value(f"psyche_{short}", *labels) or 0) + amount, *labels)

    def _only(self, short: str, *labels: str) -> None:
        """Set the value 1 with these labels, and no others."""
        self._clear(short)
        self._set(short, 1, *labels)

    def _clear(self, short: str) -> None:
        self._series.pop(f"psyche_{short}", None)


def _in_key(text: str) -> str:
    """A label's value as a part of a tracker's key: small letters, digits and underscores."""
    return _NOT_IN_KEYS.sub("_", text.lower())[:64] or "_"
