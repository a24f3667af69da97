"""Optimizer, transport and backend given as objects, functions and registrations: each is what the run is trained with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from sdk_parts import DATA, LENGTH, digests, losses, make_net, make_run

import psyche_core as psyche
from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.builtin.memory_backend import MemoryBackend, MemoryCoordinator
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.coordinator.commands import Command
from psyche_core.hookspecs import (
    BackendContext,
    BackendRegistration,
    ModelContext,
    OptimizerContext,
    OptimizerRegistration,
    TransportContext,
    TransportRegistration,
)
from psyche_core.interfaces import Model
from psyche_core.models.torch_module import ModuleFactory
from psyche_core.plugin_objects import ObjectPlugin
from psyche_core.sdk.arguments.objects import as_plugin
from psyche_core.testing.toy_model import ToyModel
from psyche_core.types import RunState
from psyche_core.wire.signing import SecretKey
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.settings import DistroSettings


class OwnOptimizer(AdamW):
    """Counts the steps that it applied."""

    applied = 0

    def apply(self, *args: Any, **more: Any) -> Any:
        self.applied += 1
        return super().apply(*args, **more)


class OwnTransport(MemoryTransport):
    """Counts the messages that it was given to send."""

    sent = 0

    async def broadcast(self, *args: Any, **more: Any) -> Any:
        self.sent += 1
        return await super().broadcast(*args, **more)


class OwnBackend(MemoryBackend):
    """Keeps the commands that it was given to send."""

    def __init__(self, coordinator: MemoryCoordinator, key: SecretKey) -> None:
        super().__init__(coordinator, key)
        self.sent: list[Command] = []

    async def send(self, command: Command, *, timeout: float) -> None:
        self.sent.append(command)
        await super().send(command, timeout=timeout)


class Bench:
    """A coordinator and a network of our own, and what a client with one key brings to them."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator(make_run().first_state())
        self.network = MemoryNetwork()
        self.optimizers: list[OwnOptimizer] = []
        self.transports: list[OwnTransport] = []
        self.backends: list[OwnBackend] = []

    def optimizer(self, model: Model) -> OwnOptimizer:
        self.optimizers.append(OwnOptimizer(AdamWSettings(), model))
        return self.optimizers[-1]

    def transport(self, context: TransportContext) -> OwnTransport:
        self.transports.append(OwnTransport(self.network, context.key.public))
        return self.transports[-1]

    def backend(self, context: BackendContext) -> OwnBackend:
        assert context.run_id == "tiny"
        self.backends.append(OwnBackend(self.coordinator, context.key))
        return self.backends[-1]

    def objects(self, net: torch.nn.Module, key: SecretKey) -> Mapping[str, Any]:
        """The optimizer is made for a model of the same module, and so for the parameters that the client trains."""
        model = ModuleFactory(lambda: net)(ModelContext(source=Path("nowhere"), max_seq_len=LENGTH, seed=bytes(32), device="cpu"))
        return {
            "optimizer": self.optimizer(model),
            "transport": self.transport(TransportContext(run_id="tiny", key=key)),
            "backend": self.backend(BackendContext(run_id="tiny", address="", key=key)),
        }

    def functions(self, _: object, __: object) -> Mapping[str, Any]:
        return {"optimizer": self.optimizer, "transport": self.transport, "backend": self.backend}

    def registrations(self, _: object, __: object) -> Mapping[str, Any]:
        about: dict[str, Any] = {"name": "own", "summary": "a test's own"}
        optimizer = OptimizerRegistration(**about, settings=AdamWSettings, create=lambda context: self.optimizer(context.model))
        transport = TransportRegistration(**about, create=self.transport)
        backend = BackendRegistration(**about, create=self.backend, needs_address=False)
        return {"optimizer": optimizer, "transport": transport, "backend": backend}


@pytest.mark.parametrize("kind", ["objects", "functions", "registrations"])
async def test_a_run_is_trained_with_what_was_given(kind: str) -> None:
    bench = Bench()
    nets, keys = [make_net(), make_net()], [SecretKey.generate(), SecretKey.generate()]
    told: list[list[psyche.events.Event]] = [[], []]
    members = [
        psyche.Client(None, run_id="tiny", model=net, data=DATA, key=key, device="cpu", callbacks=[own.append], **more)
        for net, key, own, more in zip(
            nets, keys, told, (getattr(bench, kind)(net, key) for net, key in zip(nets, keys, strict=True)), strict=True
        )
    ]
    async with anyio.create_task_group() as group:
        group.start_soon(bench.coordinator.run)
        async with members[0], members[1]:
            for member in members:
                assert (await member.wait()).success

    assert bench.coordinator.state.run_state is RunState.Finished
    assert digests(told[0]) == digests(told[1]) != []
    assert losses(told[0])[-1] < losses(told[0])[0] - 0.1
    assert [optimizer.applied for optimizer in bench.optimizers] == [8, 8]
    assert {transport.peer_id for transport in bench.transports} == {key.public for key in keys}
    assert all(transport.sent > 8 for transport in bench.transports)
    for backend in bench.backends:
        assert {"WarmupWitness", "Witness"} <= {type(command).__name__ for command in backend.sent}
    for net, optimizer in zip(nets, bench.optimizers, strict=True):  # objects in the order of their clients
        if kind == "objects":
            assert torch.equal(optimizer.masters["out.weight"], net.out.weight.detach())


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ("transport", "the transport= object has another key than the client; make both with the same one, and give key="),
        ("backend", "the backend= object has another key than the client; make both with the same one, and give key="),
        ("optimizer", "the optimizer= object was made for another model; give a function from a model to an Optimizer"),
    ],
)
async def test_an_object_that_was_made_for_another_client_is_refused_in_one_sentence(other: str, sentence: str) -> None:
    bench, key = Bench(), SecretKey.generate()
    foreign = bench.objects(torch.nn.Embedding(32, 32), SecretKey.generate())
    given = {**bench.functions(None, None), other: foreign[other]}
    client = psyche.Client(None, run_id="tiny", model=make_net(), data=DATA, key=key, device="cpu", **given)
    with anyio.fail_after(20), pytest.raises(psyche.errors.ConfigError, match=f"^{re.escape(sentence)}$"):
        async with client:
            await client.wait()


async def test_a_function_is_told_the_address_and_an_object_has_no_use_for_one() -> None:
    asked: list[BackendContext] = []
    bench = Bench()

    def backend(context: BackendContext) -> OwnBackend:
        asked.append(context)
        raise ZeroDivisionError

    client = psyche.Client("far:1", run_id="tiny", model=make_net(), data=DATA, backend=backend, device="cpu")
    with anyio.fail_after(20), pytest.raises(psyche.errors.PluginFailed, match="ZeroDivisionError"):
        async with client:
            await client.wait()
    assert [context.address for context in asked] == ["far:1"]

    key = SecretKey.generate()
    with pytest.raises(
        psyche.errors.ConfigError, match=r"^a backend= object has its own address of the coordinator; .* got 'far:1'$"
    ):
        psyche.Client("far:1", run_id="tiny", key=key, backend=MemoryBackend(bench.coordinator, key))


def test_an_optimizer_object_that_is_used_again_begins_with_a_public_state_of_zeros() -> None:
    """The model is loaded again, for instance after a return to an earlier step; its checkpoint is read after that."""
    model = ToyModel()
    optimizer = DistroOptimizer(DistroSettings(quantize_1bit=True, second_stage="rmsprop"), model)
    given_object = as_plugin("optimizer", optimizer)
    assert isinstance(given_object, ObjectPlugin)
    registration = given_object.registration
    assert isinstance(registration, OptimizerRegistration)
    context = OptimizerContext(settings=registration.settings(), model=model)
    assert registration.create(context) is optimizer
    model.fill_gradients(0.5)
    optimizer.apply(1, [optimizer.compress(1, learning_rate=0.01)], learning_rate=0.01, own_accepted=True)
    assert any(bool(tensor.any()) for tensor in optimizer.public_state.values())
    assert registration.create(context) is optimizer
    assert not any(bool(tensor.any()) for tensor in optimizer.public_state.values())
