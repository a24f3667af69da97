"""What the SDK is given and cannot use: one sentence with what came, what was expected and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sdk_parts import DATA, make_net, make_run

import psyche_core as psyche
from psyche_core.testing.toy_model import ToyModel

PLACE = "127.0.0.1:20000"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"model": 3}, "model= takes a torch.nn.Module, .*; got a int"),
        ({"model": ToyModel()}, "model= takes a torch.nn.Module, .* a ModelRegistration; got a ToyModel"),
        ({"data": 3}, "data= takes a dataset with __len__ and __getitem__, .*; got a int"),
        ({"data": {"a": 1}}, "data= takes a dataset .*; got a dict"),
        ({"data": iter(DATA)}, "data= takes a dataset .*; got a list_iterator"),
        ({"data": torch.utils.data.TensorDataset}, "data= takes a dataset .*; got the class TensorDataset"),
        ({"optimizer": 1e-3}, "optimizer= takes a plugin's name, .*; got a float"),
        ({"transport": 1}, "transport= takes a plugin's name, .*; got a int"),
        ({"backend": object()}, "backend= takes a plugin's name, .*; got a object"),
        ({"callbacks": ["print"]}, "callbacks= takes functions of one event, got a str"),
        ({"callbacks": print}, r"callbacks= takes a list of functions, got a function alone; write callbacks=\[print\]"),
        ({"callbacks": None}, "callbacks= takes a list of functions, got None"),
        ({"checkpoint_dir": 3}, "checkpoint_dir= takes a path, got a int"),
        ({"base": 3}, "base= takes a path, got a int"),
        ({"key": 3}, "key= takes a SecretKey or the path of a file with one, got a int"),
        ({"options": [3]}, "options= takes a mapping of further settings by name, got a list"),
        ({"reconnect_seconds": 5}, r"Client has no argument reconnect_seconds=; write options=\{'reconnect_seconds': …\}"),
        (
            {"events_dir": "events"},
            r"Client has no argument events_dir=; it is for the command line; use callbacks= or client\.events\(\)",
        ),
        ({"mode": 5}, r"Client has no argument mode=; did you mean model\?"),
    ],
)
def test_wrong_objects_are_type_errors_of_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TypeError, match=f"^{sentence}$") as caught:
        psyche.Client(PLACE, run_id="tiny", **given)
    assert "\n" not in str(caught.value)


def test_an_async_callback_is_refused_with_what_to_use() -> None:
    async def told(event: object) -> None: ...

    with pytest.raises(TypeError, match=r"got an async one; use `async for event in client\.events"):
        psyche.Client(PLACE, run_id="tiny", callbacks=[told])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "run_id= is needed when address= is a string"),
        (
            {"run_id": "tiny", "micro_batch_size": 0},
            r"^Client.micro_batch_size = 0: must be auto or a whole number of at least 1$",
        ),
        (
            {"run_id": "tiny", "options": {"compute_type": "x"}},
            r"^Client.compute_type.*: unknown key; did you mean compute_d",
        ),
        ({"run_id": "tiny", "options": {"device": "cpu"}}, "^options: device is an argument of its own$"),
        ({"run_id": "tiny", "options": {"logs": "json"}}, "^options: logs is for the command line; use callbacks= or"),
        ({"run_id": "x" * 33}, "^Client.run_id = .*at most 32 bytes"),
    ],
)
def test_wrong_values_are_configuration_errors(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(psyche.errors.ConfigError, match=sentence):
        psyche.Client(PLACE, **given)


def test_the_environment_does_not_reach_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSYCHE_TORCH_THREADS", "none")  # no argument of a Client, so nothing beats it
    psyche.Client(PLACE, run_id="tiny")


def test_an_address_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match=r"^a Client takes Coordinator.address, or a string .* got a Coordinator$"):
        psyche.Client(psyche.Coordinator(make_run()))  # type: ignore[arg-type]


def test_a_coordinator_of_no_run() -> None:
    with pytest.raises(TypeError, match=r"^Coordinator takes a RunConfig, got a str; make one with psyche.load_run\(path\)$"):
        psyche.Coordinator("state.toml")  # type: ignore[arg-type]


def test_a_run_that_breaks_rules_says_all_of_them() -> None:
    with pytest.raises(psyche.errors.ConfigError) as caught:
        make_run(steps=0, batch_size=0)
    assert str(caught.value).splitlines()[:2] == [
        "RunConfig: config.global_batch_size_start = 0: must be at least 1",
        "RunConfig: config.global_batch_size_end = 0: must be at least 1 and at least global_batch_size_start (0)",
    ]


def test_a_run_file_is_loaded_with_its_folder() -> None:
    path = Path(__file__).parents[3] / "examples" / "local_testnet" / "state.toml"
    run = psyche.load_run(path)
    assert run.base == path.parent
    assert run.config.total_steps > 0
    assert run == psyche.load_run(str(path))


async def test_what_is_used_outside_its_block_or_twice_says_so() -> None:
    coordinator = psyche.Coordinator(make_run(clients=1))
    with pytest.raises(RuntimeError, match=r"use it inside `async with psyche\.Coordinator"):
        _ = coordinator.address
    client = psyche.Client(PLACE, run_id="tiny")
    with pytest.raises(RuntimeError, match=r"use it inside `async with psyche\.Client"):
        await client.wait()
    async with coordinator:
        pass
    with pytest.raises(RuntimeError, match="a Coordinator is used once"):
        async with coordinator:
            pass


async def test_a_coordinator_inside_the_process_keeps_no_state(tmp_path: Path) -> None:
    with pytest.raises(psyche.errors.ConfigError, match="has no state_dir; use the backend tcp for that"):
        async with psyche.Coordinator(make_run(), state_dir=tmp_path):
            pass


def test_a_step_to_stop_after_is_a_step() -> None:
    with pytest.raises(ValueError, match="after_step must be at least 1, the first step, got 0"):
        psyche.Client(PLACE, run_id="tiny", model=make_net()).stop(after_step=0)


@pytest.mark.parametrize("missing", ["model", "data"])
def test_a_run_in_code_says_which_object_is_missing(missing: str) -> None:
    given: dict[str, Any] = {"model": make_net(), "data": DATA, missing: None}
    with pytest.raises(psyche.errors.UserError, match=f"^this run names no {missing}, .*; give {missing}=…$"):
        psyche.train(make_run(clients=1), device="cpu", **given)


@pytest.mark.parametrize("address", [None, ""])
def test_no_address_at_all(address: str | None) -> None:
    with pytest.raises(
        psyche.errors.ConfigError, match=r"^address= is needed: Coordinator.address, or a string such as 'host:port#KEY'"
    ):
        psyche.Client(address)


def test_a_file_in_the_place_of_a_folder_is_named_by_its_argument(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    sentence = "'.*file' is a file; give a folder \\(created if missing\\)$"
    with pytest.raises(psyche.errors.ConfigError, match=f"^checkpoint_dir={sentence}"):
        psyche.Client(PLACE, run_id="tiny", checkpoint_dir=tmp_path / "file")
    with pytest.raises(psyche.errors.ConfigError, match=f"^state_dir={sentence}"):
        psyche.Coordinator(make_run(), backend="tcp", state_dir=tmp_path / "file")


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ({"backend": "tcp", "port": "20000"}, TypeError, r"port= takes a whole number, got '20000' \(str\)"),
        ({"backend": "tcp", "port": True}, TypeError, r"port= takes a whole number, got True \(bool\)"),
        ({"backend": "tcp", "port": 99999}, psyche.errors.ConfigError, r"port=99999: expected a port, 0 .* to 65535"),
        ({"backend": "tcp", "port": -1}, psyche.errors.ConfigError, r"port=-1: expected a port, 0 .*"),
        ({"backend": "tcp", "host": 3}, TypeError, "host= takes a string such as '127.0.0.1', got a int"),
        ({"backend": 3}, TypeError, "backend= takes a string such as 'tcp', got a int"),
        ({"state_dir": 3}, TypeError, "state_dir= takes a path, got a int"),
        (
            {"port": 20000},
            psyche.errors.ConfigError,
            "a coordinator inside one process has no port, got 20000; host it with backend='tcp'.*",
        ),
        ({"host": "::"}, psyche.errors.ConfigError, "a coordinator inside one process has no host, got '::'; host it with .*"),
    ],
)
def test_a_coordinator_s_wrong_arguments(given: dict[str, Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=f"^{sentence}$"):
        psyche.Coordinator(make_run(), **given)


def test_a_run_s_wrong_arguments() -> None:
    with pytest.raises(TypeError, match=r"^config= takes a mapping of keys of a run file's \[config\], got a list$"):
        make_run(config=[1])
    with pytest.raises(TypeError, match=r"^base= takes a path, got a int$"):
        make_run(base=3)
    with pytest.raises(TypeError, match=r"^load_run takes the path of a run file, got a int$"):
        psyche.load_run(3)  # type: ignore[arg-type]


async def test_a_state_folder_has_one_coordinator_at_a_time(tmp_path: Path) -> None:
    run = make_run()
    async with psyche.Coordinator(run, backend="tcp", state_dir=tmp_path):
        with pytest.raises(
            psyche.errors.ConfigError, match=f"^another server keeps its state in {tmp_path}; .* another state_dir$"
        ):
            async with psyche.Coordinator(run, backend="tcp", state_dir=tmp_path):
                pass
    async with psyche.Coordinator(run, backend="tcp", state_dir=tmp_path):
        pass
