"""Held-out data of a client: an object or token files beside whatever data the run has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sdk_parts import DATA, LENGTH, VOCABULARY, make_net, make_run

import psyche_core as psyche

HELD_OUT = [[(3 * item + 5 * place) % VOCABULARY for place in range(LENGTH)] for item in (100, 107, 113)]


def loss_of(net: torch.nn.Module, rows: list[list[int]]) -> float:
    """Mean over all predicted tokens, nats."""
    ids = torch.tensor(rows)
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(net(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))


async def validated(run: psyche.RunConfig, **given: Any) -> tuple[dict[int, float], torch.nn.Module]:
    """Losses by step, and the trained module."""
    told: list[psyche.events.Event] = []
    net = make_net()
    await psyche.train_async(run, model=net, device="cpu", callbacks=[told.append], **given)
    return {event.step: event.loss for event in told if isinstance(event, psyche.events.Validated)}, net


def tokens(path: Path, rows: list[list[int]]) -> Path:
    path.mkdir()
    np.array(rows, dtype="<u2").tofile(path / "tokens.ds")
    return path


async def test_the_loss_on_an_object_is_told_before_and_after_training() -> None:
    losses, net = await validated(make_run(clients=1, steps_per_epoch=4), data=DATA, eval_data=HELD_OUT)

    assert [*losses] == [0, 4, 8]
    assert losses[0] == pytest.approx(loss_of(make_net(), HELD_OUT), rel=1e-5)
    assert losses[8] == pytest.approx(loss_of(net, HELD_OUT), rel=1e-5)
    assert losses[8] < losses[4] < losses[0]


async def test_token_files_are_held_out_beside_an_object(tmp_path: Path) -> None:
    place = tokens(tmp_path / "held", HELD_OUT)
    losses, _ = await validated(make_run(clients=1), data=DATA, options={"validation_data": place})
    assert losses[0] == pytest.approx(loss_of(make_net(), HELD_OUT), rel=1e-5)


async def test_an_object_is_held_out_beside_the_run_s_own_token_files(tmp_path: Path) -> None:
    place = tokens(tmp_path / "train_files", DATA)
    run = make_run(clients=1, data={"Local": {"location": str(place)}})
    losses, net = await validated(run, eval_data=HELD_OUT, options={"validation_sequences": 2})

    assert losses[0] == pytest.approx(loss_of(make_net(), HELD_OUT[:2]), rel=1e-5)
    plain = make_net()
    await psyche.train_async(make_run(clients=1), model=plain, data=DATA, device="cpu")
    assert all(map(torch.equal, net.parameters(), plain.parameters()))  # trained on its files, and on nothing else


async def test_other_data_than_expected_is_still_refused(tmp_path: Path) -> None:
    run = make_run(clients=1, data={"Local": {"location": str(tokens(tmp_path / "files", DATA))}})
    with pytest.raises(psyche.errors.PluginError, match=r"the run has Local as its data, but .* expects Http"):
        await validated(run, data="Http", eval_data=HELD_OUT)


async def test_rules_of_the_run_s_location_still_hold() -> None:
    run = make_run(clients=1, data={"Local": {"location": "somewhere", "token_sise": "TwoBytes"}})
    with pytest.raises(psyche.errors.ConfigError, match=r"model\.LLM\.data_location\.Local.token_sise.*did you mean token_size"):
        await validated(run, eval_data=HELD_OUT)


async def test_token_ids_that_the_model_does_not_have_are_told() -> None:
    said = rf"^the data plugin list \(given in code\) gave the token id {VOCABULARY}, which is outside the model's vocabulary of"
    with pytest.raises(psyche.errors.DataError, match=said):
        await validated(make_run(clients=1), data=DATA, eval_data=[[VOCABULARY] * LENGTH])


async def test_held_out_files_of_another_model_are_told(tmp_path: Path) -> None:
    place = tokens(tmp_path / "held", [[VOCABULARY] * LENGTH])
    said = (
        rf"^the data plugin Local \(psyche-core .*\) gave the token id {VOCABULARY}, which is outside the model's vocabulary of"
    )
    with pytest.raises(psyche.errors.DataError, match=said):
        await validated(make_run(clients=1), data=DATA, options={"validation_data": place})


async def test_items_of_another_length_are_told() -> None:
    with pytest.raises(psyche.errors.DataError, match="item 0 of the dataset must be 8 whole numbers"):
        await validated(make_run(clients=1), data=DATA, eval_data=[[1, 2, 3]])


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ({"eval_data": 3}, TypeError, "^eval_data= takes a dataset with __len__"),
        ({"eval_data": "held"}, TypeError, r"^eval_data= takes objects, .* options=\{'validation_data': 'held'\}$"),
        ({"eval_data": HELD_OUT, "options": {"validation_data": "x"}}, psyche.errors.ConfigError, "both set the held-out data"),
    ],
)
def test_what_will_not_do_is_told_at_once(given: dict[str, Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        psyche.Client("127.0.0.1:1", run_id="tiny", model=make_net(), data=DATA, **given)
