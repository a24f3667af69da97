"""Runs with objects in place of plugins: trained to the end, in one process, inside and over TCP."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sdk_parts import DATA, LENGTH, VOCABULARY, Net, digests, losses, make_net, make_run
from torch.utils.data import TensorDataset

import psyche_core as psyche
from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.hookspecs import TransportContext
from psyche_core.interfaces import Model, Optimizer, Transport
from psyche_core.training.digest import full_digest

Told = list[psyche.events.Event]


async def play(run: psyche.RunConfig, members: list[dict[str, Any]], **hosting: Any) -> tuple[list[Told], list[psyche.Client]]:
    told: list[Told] = [[] for _ in members]
    async with psyche.Coordinator(run, **hosting) as coordinator:
        clients = [
            psyche.Client(coordinator.address, callbacks=[own.append], device="cpu", **given)
            for own, given in zip(told, members, strict=True)
        ]
        if len(clients) == 1:
            async with clients[0]:
                await clients[0].wait()
        else:
            async with clients[0], clients[1]:
                for client in clients:
                    assert (await client.wait()).success
        assert coordinator.state.run_state.name == "Finished"
    return told, clients


def check_equal_and_learning(told: list[Told], clients: list[psyche.Client], *, steps: int = 8) -> None:
    for own in told:
        assert len(losses(own)) == steps
        assert losses(own)[-1] < losses(own)[0] - 0.1
    assert digests(told[0]) == digests(told[1]) != []
    for client in clients:
        assert client.metrics.step == client.metrics.applied == steps
        assert client.metrics.loss == losses(told[clients.index(client)])[-1]
        assert client.metrics.bytes_sent > 0
        assert client.metrics.bytes_received > 0
        assert client.metrics.tokens_per_second > 0
        assert client.state is not None
        assert client.state.run_state.name == "Finished"


async def test_two_clients_train_a_module_on_a_list_to_the_end() -> None:
    nets = [make_net(), make_net()]
    before = nets[0].out.weight.detach().clone()

    told, clients = await play(make_run(), [{"model": net, "data": DATA} for net in nets])

    check_equal_and_learning(told, clients)
    assert clients[0].model is nets[0]
    assert not torch.equal(before, nets[0].out.weight)
    masters = {name: parameter.detach() for name, parameter in nets[1].named_parameters()}
    assert full_digest(dict(sorted(masters.items()))).hex() == digests(told[0])[-1]  # the module holds the run's weights


async def test_the_same_over_tcp_with_a_transport_given_as_a_function() -> None:
    network = MemoryNetwork()

    def transport(context: TransportContext) -> Transport:
        return MemoryTransport(network, context.key.public)

    members = [{"model": make_net, "data": DATA, "transport": transport, "optimizer": "AdamW"} for _ in range(2)]
    told, clients = await play(make_run(), members, backend="tcp")

    check_equal_and_learning(told, clients)
    assert isinstance(clients[0].model, Net)


@pytest.mark.quic
async def test_the_same_over_tcp_and_quic_by_the_text_of_the_address() -> None:
    async with psyche.Coordinator(make_run(), backend="tcp") as coordinator:
        place = str(coordinator.address)
        async with (
            psyche.Client(place, run_id="tiny", model=make_net(), data=DATA) as one,
            psyche.Client(place, run_id="tiny", model=make_net(), data=DATA) as other,
        ):
            told: list[Told] = [[event async for event in client.events()] for client in (one, other)]

    check_equal_and_learning(told, [one, other])


async def test_a_transformers_model_and_an_optimizer_function() -> None:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)  # type: ignore[arg-type]  # ints

    def make_llama() -> torch.nn.Module:
        torch.manual_seed(1)
        return transformers.LlamaForCausalLM(config)  # type: ignore[no-any-return, unused-ignore]

    def optimizer(model: Model) -> Optimizer:
        return AdamW(AdamWSettings(), model)

    rows = np.array(DATA, dtype=np.uint16)
    told, clients = await play(make_run(), [{"model": make_llama(), "data": rows, "optimizer": optimizer} for _ in range(2)])

    check_equal_and_learning(told, clients)


class WithLoss(Net):
    """ids -> scalar mean loss."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = super().forward(ids)[:, :-1]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


async def test_a_module_with_a_loss_of_its_own_trains_as_one_with_logits() -> None:
    torch.manual_seed(0)
    with_loss = WithLoss()
    [told], _ = await play(make_run(clients=1), [{"model": with_loss, "data": DATA, "micro_batch_size": 3}])
    [plain], _ = await play(make_run(clients=1), [{"model": make_net(), "data": DATA, "micro_batch_size": 3}])

    assert losses(told) == pytest.approx(losses(plain), rel=1e-4)


@pytest.mark.parametrize(
    "data",
    [
        np.array(DATA),
        torch.tensor(DATA),
        [{"input_ids": row, "attention_mask": [1] * LENGTH} for row in DATA],
        [{"input_ids": torch.tensor(row), "labels": torch.tensor(row)} for row in DATA],
    ],
    ids=["numpy", "torch", "mappings", "labels"],
)
async def test_data_of_any_map_style_gives_the_same_training(data: Any) -> None:
    [told], _ = await play(make_run(steps=2, clients=1), [{"model": make_net(), "data": data}])
    [plain], _ = await play(make_run(steps=2, clients=1), [{"model": make_net(), "data": DATA}])

    assert losses(told) == losses(plain)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([row[:-1] for row in DATA], r"item \d+ of the dataset must be 8 whole numbers .* got list of shape \(7,\)"),
        ([[0.5] * LENGTH for _ in DATA], r"must be 8 whole numbers .* type float64"),
        (
            [[VOCABULARY] * LENGTH for _ in DATA],
            r"the data plugin list \(given in code\) gave the token id 32, which is outside the model's vocabulary of 32",
        ),
        ([{"tokens": row} for row in DATA], "has no input_ids, got a mapping with tokens"),
        (TensorDataset(torch.tensor(DATA)), r"must be 8 whole numbers .* got tuple of shape \(1, 8\)"),
    ],
)
async def test_items_that_do_not_fit_are_told_in_one_sentence(data: Any, sentence: str) -> None:
    """Beyond the first ones, which are looked at before the run is joined."""
    async with (
        psyche.Coordinator(make_run(clients=1)) as coordinator,
        psyche.Client(coordinator.address, model=make_net(), data=[*DATA[:8], *list(data)[8:]]) as client,
    ):
        async for event in client.events():
            if isinstance(event, psyche.events.Problem):
                assert re.search(sentence, event.message)
                return
    pytest.fail("nobody was told")


async def test_an_empty_dataset_ends_the_client_with_a_sentence() -> None:
    with pytest.raises(psyche.errors.DataError, match=r"the dataset \(list\) is empty"):
        async with (
            psyche.Coordinator(make_run(clients=1)) as coordinator,
            psyche.Client(coordinator.address, model=make_net(), data=[]) as client,
        ):
            await client.wait()


async def test_members_that_bring_other_weights_take_those_of_the_others_or_are_told() -> None:
    """Two members with different first weights: the run settles on one set before its first round, or goes nowhere."""
    told, _ = await play(make_run(steps=3), [{"model": make_net(seed), "data": DATA} for seed in (0, 1)])

    assert digests(told[0]) == digests(told[1])
