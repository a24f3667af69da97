"""Selects the fastest backend that is available."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch

from psyche_optim_distro.backends.numba import numba_available
from psyche_optim_distro.backends.torch import TorchCompressor, TorchValueUpdater, TorchVoteUpdater
from psyche_optim_distro.chunks.layout import Layout
from psyche_optim_distro.chunks.precision import Precision, precision_for
from psyche_optim_distro.chunks.rates import Rates
from psyche_optim_distro.chunks.tiles import Workspace
from psyche_optim_distro.compress import Compressor
from psyche_optim_distro.direction.aggregation import Aggregator
from psyche_optim_distro.direction.clip import Clip
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.coefficients import Coefficients, as_coefficients
from psyche_optim_distro.update import SecondStage, Updater
from psyche_optim_distro.value_format import ValueFormat


def compressor_for(
    layout: Layout,
    values: ValueFormat,
    device: torch.device,
    *,
    workspace: Workspace,
    precision: Precision | None,
    compiled: bool,
) -> Compressor:
    """Return the fastest compressor for this table, value format and device.

    workspace: scratch memory of the torch backend. precision: of the torch backend's transform; a value other than None selects
    that backend. compiled: whether the numba backend may be used.
    """
    if compiled and precision is None and device.type == "cpu" and numba_available():
        from psyche_optim_distro.backends.numba.compress import NumbaCompressor

        return NumbaCompressor(layout)

    return TorchCompressor(layout, device, precision or precision_for(values, device), workspace=workspace)


def updater_for(
    layout: Layout,
    values: ValueFormat,
    device: torch.device,
    *,
    workspace: Workspace,
    compiled: bool,
    rates: Rates = MappingProxyType({}),
    second_stage: SecondStage | None = None,
) -> Updater[Any]:
    """Return the fastest updater for this table, value format and device.

    The numba backend has one only for signs, without a second stage or with `clip`. workspace: scratch memory of the torch
    backend. compiled: whether the numba backend may be used. rates: of the parameters. second_stage: None: the direction is the
    sign of the decoded mean.
    """
    fits = values is ValueFormat.SIGNS and (second_stage is None or isinstance(second_stage, Clip))
    if compiled and fits and device.type == "cpu" and numba_available():
        from psyche_optim_distro.backends.numba.update import NumbaUpdater

        return NumbaUpdater(layout, rates, clipped=second_stage is not None)

    aggregator = Aggregator(layout, device, workspace=workspace)
    if values is ValueFormat.SIGNS:
        return TorchVoteUpdater(layout, aggregator, rates, second_stage=second_stage)

    return TorchValueUpdater(layout, aggregator, values, rates, second_stage=second_stage)


def decoder_for(layout: Layout, values: ValueFormat, device: torch.device, *, compiled: bool) -> Callable[[bytes], Coefficients]:
    """Return the fastest function that checks and decodes a payload. It may be called in any thread.

    It raises PayloadRejected, never anything else. compiled: whether the numba backend may be used.
    """
    if compiled and values is ValueFormat.SIGNS and device.type == "cpu" and numba_available():
        from psyche_optim_distro.backends.numba.update import NumbaUpdater

        updater = NumbaUpdater(layout)

        def votes(payload: bytes) -> Coefficients:
            return updater.decode(payload).as_coefficients()

        return votes

    def selection(payload: bytes) -> Coefficients:
        return as_coefficients(layout, codec.decode(layout, payload, values=values), signs=values is ValueFormat.SIGNS)

    return selection
