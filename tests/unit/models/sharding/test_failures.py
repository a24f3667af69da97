"""When one process of a divided model ends, all end, with one sentence. Nothing hangs, nobody is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from psyche_core.builtin.hf_models import divide
from psyche_core.errors import ModelError, RanksLost, WireError
from psyche_core.hookspecs import ModelContext, Parallelism
from psyche_core.interfaces.optimizer_parts import PartValues
from psyche_core.models.sharding import model_shard
from psyche_core.models.sharding.commands import Divide
from psyche_core.models.sharding.controller import RankController
from psyche_core.models.sharding.dtensor import DTensorEngine
from psyche_core.models.sharding.group import collectives
from psyche_core.models.sharding.group.collectives import TorchGroup
from psyche_core.models.sharding.group.failure_detector import FailureDetector, report_failure
from psyche_core.models.sharding.group.rendezvous import GroupSettings, invite, join, reach_store, serve_store, split_address
from psyche_core.models.sharding.model import ShardedModel
from psyche_core.testing.model import ModelConformance
from psyche_core.testing.tiny_models import LLAMA
from psyche_optim_distro.hooks import create_part
from psyche_optim_distro.settings import DistroSettings

SECONDS = 60.0
SECRET = b"only for those who know it"
OTHERS = b"somebody else's secret ..."

samples = ModelConformance().samples
StartController = Callable[..., RankController]


@pytest.fixture
def start_controller() -> Iterator[StartController]:
    """A function that starts ranks; whatever still runs is ended."""
    torch.set_num_threads(1)
    controllers: list[RankController] = []

    def start(parallelism: Parallelism) -> RankController:
        controllers.append(RankController(parallelism, device_name="cpu"))
        return controllers[-1]

    yield start
    for controller in controllers:
        controller.close()


@pytest.fixture
def context(tmp_path: Path) -> ModelContext:
    (tmp_path / "config.json").write_text(json.dumps(dict(LLAMA)))
    return ModelContext(source=tmp_path, max_seq_len=16, seed=bytes(32), device="cpu", create_engine=DTensorEngine)


def model_of(context: ModelContext, controller: RankController, parallelism: Parallelism) -> ShardedModel:
    given = {name: getattr(context, name) for name in ("source", "max_seq_len", "seed", "device", "create_engine")}
    return divide(ModelContext(**given, parallelism=parallelism), controller=controller)


def wait_for(found: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SECONDS
    while not found():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def is_gone(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_a_rank_killed_while_idle_ends_all_with_one_sentence(start_controller: StartController, context: ModelContext) -> None:
    parallelism = Parallelism(data=3)
    controller = start_controller(parallelism)
    model = model_of(context, controller, parallelism)
    processes = controller.processes
    os.kill(processes[2], signal.SIGKILL)
    for _ in range(2):  # it stays so
        with pytest.raises(RanksLost, match=rf"rank 2 \(process {processes[2]}\) was ended by SIGKILL; if memory ran out, try"):
            model.gradients(samples(model), micro_batch_size=2)
    with pytest.raises(RanksLost, match="rank 2"):
        model.loss(samples(model), micro_batch_size=2)
    assert all(parameter.grad is None for parameter in model.parameters.values())
    wait_for(lambda: all(map(is_gone, processes.values())), "a rank is left behind")


def test_m13_a_rank_killed_in_the_middle_of_a_step_hangs_nobody(
    start_controller: StartController, context: ModelContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference waits for up to two hours. Here rank 1 stops, rank 0 waits for it in a collective, then rank 1 is killed."""
    parallelism = Parallelism(tensor=2)
    controller = start_controller(parallelism)
    model = model_of(context, controller, parallelism)
    (process,) = controller.processes.values()
    sent, group = threading.Event(), controller._group
    assert group is not None
    broadcast = TorchGroup.broadcast

    def tell(self: TorchGroup, tensor: torch.Tensor) -> None:
        sent.set()
        broadcast(self, tensor)

    monkeypatch.setattr(TorchGroup, "broadcast", tell)
    os.kill(process, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as thread:
        step = thread.submit(model.gradients, samples(model), micro_batch_size=2)
        assert sent.wait(SECONDS)
        os.kill(process, signal.SIGKILL)
        with pytest.raises(RanksLost, match=rf"rank 1 \(process {process}\) was ended by SIGKILL"):
            step.result(timeout=SECONDS)


def test_an_exception_in_a_rank_is_the_sentence_all_end_with(start_controller: StartController, context: ModelContext) -> None:
    parallelism = Parallelism(data=2, sharding="no-such-engine")
    controller = start_controller(parallelism)
    (process,) = controller.processes.values()

    def train() -> None:
        model = model_of(context, controller, parallelism)
        model.gradients(samples(model), micro_batch_size=2)

    with pytest.raises(RanksLost, match=r"rank 1: .*no-such-engine") as raised:
        train()
    assert "\n" not in str(raised.value)
    wait_for(lambda: is_gone(process), "the rank is left behind")


def test_ranks_that_disagree_about_a_gradient_train_nothing(
    start_controller: StartController, context: ModelContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit in one value of one rank's piece, at the first step."""
    parallelism = Parallelism(tensor=2)
    model = model_of(context, start_controller(parallelism), parallelism)
    digest = model_shard._digest

    def off_by_a_bit(gradient: torch.Tensor | None) -> bytes:
        assert gradient is not None
        changed = gradient.clone()
        if changed.shape == (32,):
            changed.view(torch.int32)[3] ^= 1
        return digest(changed)

    monkeypatch.setattr(model_shard, "_digest", off_by_a_bit)
    with pytest.raises(RanksLost, match=r"the ranks disagree about the gradient of model\.layers\.0\.input_layernorm\.weight"):
        model.gradients(samples(model), micro_batch_size=2)
    assert all(parameter.grad is None for parameter in model.parameters.values())


def test_ranks_end_when_the_client_is_killed(context: ModelContext) -> None:
    script = (
        "import sys, time\n"
        "from psyche_core.hookspecs import Parallelism\n"
        "from psyche_core.models.sharding.controller import RankController\n"
        "controller = RankController(Parallelism(data=2), device_name='cpu')\n"
        "print(controller.processes[1], flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        process = int(client.stdout.readline())
        assert not is_gone(process)
        client.kill()
        client.wait()
        wait_for(lambda: is_gone(process), "the rank outlives its client")


@pytest.mark.soak  # each rank imports torch anew
@pytest.mark.parametrize("ending", ["end", pytest.param("kill", marks=pytest.mark.soak)])
def test_ranks_of_another_machine_join_by_command(
    start_controller: StartController, context: ModelContext, free_port: Callable[[], int], tmp_path: Path, ending: str
) -> None:
    """Two ranks, as another machine's user starts them; without files of the model."""
    port = free_port()
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    (tmp_path / "secret").chmod(0o600)
    arguments = ("--main-host", "127.0.0.1", "--port", port, "--world-size", 3, "--start-rank", 1, "--local-ranks", 2)
    secret = ("--secret-file", str(tmp_path / "secret"))
    command = [sys.executable, "-m", "psyche_core.training.sidecar", *map(str, arguments), *secret]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as sidecars:
        try:
            parallelism = Parallelism(data=3, bind=f"127.0.0.1:{port}", local_ranks=1, secret=SECRET)
            controller = start_controller(parallelism)
            model = model_of(context, controller, parallelism)
            assert model.gradients(samples(model), micro_batch_size=2) > 0
            if ending == "end":
                controller.close()
                assert sidecars.wait(SECONDS) == 0
            else:
                sidecars.kill()  # its ranks end with it
                with pytest.raises(RanksLost, match=r"rank [12]|Connection|connection"):
                    model.gradients(samples(model), micro_batch_size=2)
        finally:
            sidecars.kill()


def test_who_does_not_know_the_secret_is_refused_and_the_right_one_still_joins() -> None:
    store, host, port = serve_store(None)
    with ThreadPoolExecutor(1) as thread:
        invited = thread.submit(invite, store, world_size=2, backend="gloo", secret=SECRET, seconds=SECONDS, problem=lambda: None)
        with pytest.raises(ModelError, match="rank 1 was rejected: its secret differs from the client's"):
            join(reach_store(host, port), rank=1, world_size=2, secret=OTHERS, seconds=SECONDS)
        with pytest.raises(ModelError, match="ranks 1 to 1 besides its own, got rank 1 of 3; check --world-size"):
            join(reach_store(host, port), rank=1, world_size=3, secret=SECRET, seconds=SECONDS)
        joined = join(reach_store(host, port), rank=1, world_size=2, secret=SECRET, seconds=SECONDS)
        assert joined == invited.result(timeout=SECONDS)
    with pytest.raises(ModelError, match="rank 1 has joined already"):
        join(reach_store(host, port), rank=1, world_size=2, secret=SECRET, seconds=SECONDS)


def test_the_secret_is_not_in_the_store() -> None:
    store, host, port = serve_store(None)
    with ThreadPoolExecutor(1) as thread:
        invited = thread.submit(invite, store, world_size=2, backend="gloo", secret=SECRET, seconds=SECONDS, problem=lambda: None)
        join(reach_store(host, port), rank=1, world_size=2, secret=SECRET, seconds=SECONDS)
        prefix = invited.result(timeout=SECONDS).prefix
    values = [store.get(key) for key in ("hello", "join/1", "answer/1")]
    assert all(SECRET not in value and SECRET.hex().encode() not in value for value in values)
    assert all(prefix.encode() not in value for value in values), "nor where connections are arranged"


def test_who_never_comes_is_named() -> None:
    store, *_ = serve_store(None)
    with pytest.raises(ModelError, match=r"rank 1, 2 did not join within 0.2 s; start it with `psyche sidecar`"):
        invite(store, world_size=3, backend="gloo", secret=SECRET, seconds=0.2, problem=lambda: None)


def test_a_rank_that_died_before_it_joined_is_told_at_once() -> None:
    store, *_ = serve_store(None)
    with pytest.raises(ModelError, match="it died"):
        invite(store, world_size=2, backend="gloo", secret=SECRET, seconds=SECONDS, problem=lambda: "it died")


@pytest.mark.parametrize("address", ["", ":1", "host:", "host:x", "host:70000"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ModelError, match="is not an address; expected HOST:PORT"):
        split_address(address)


def test_the_store_listens_on_loopback_only_unless_told() -> None:
    _, host, port = serve_store(None)
    assert host == "127.0.0.1"
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    local = [line.split()[1] for line in listening.splitlines() if f":{port:04X}" in line.split()[1] and line.split()[3] == "0A"]
    assert local == [f"0100007F:{port:04X}"]


def test_a_silent_rank_is_lost_and_the_sentence_is_for_all() -> None:
    store, host, port = serve_store(None)
    lost: list[str] = []
    found = threading.Event()

    def note(sentence: str) -> None:
        lost.append(sentence)
        found.set()

    detector = FailureDetector(reach_store(host, port), rank=0, others={1: "machine-b"}, lost=note, silent_seconds=0.1)
    detector.start()
    assert found.wait(SECONDS)
    assert lost == ["rank 1 (machine-b) has been silent for 0.1 s; is its machine still there?"]
    assert store.get("failure").decode() == lost[0]
    report_failure(store, "a later one")
    assert store.get("failure").decode() == lost[0], "the first sentence is the one all end with"
    detector.stop()


def test_ranks_wait_for_work_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours pass between two steps when a run is paused: a wait that runs out is begun again."""
    monkeypatch.setattr(collectives, "WAIT_SECONDS", 0.01)
    store, host, port = serve_store(None)
    settings = GroupSettings(world_size=1, backend="gloo", prefix="p")
    group = TorchGroup(reach_store(host, port), settings, rank=0, device=torch.device("cpu"), local=True)
    try:
        waits: list[None] = []
        wait = group._store.wait

        class Counting:
            def wait(self, keys: list[str], limit: timedelta) -> None:
                waits.append(None)
                if len(waits) == 5:
                    store.set("work/0", "1")
                wait(keys, limit)

        group._store = Counting()  # type: ignore[assignment]
        with pytest.raises(WireError, match="a command has at most"):  # rank 0's own broadcast carries nothing here
            group.receive()
        assert len(waits) == 5
        with pytest.raises(ModelError, match="torch supports one process group at a time"):
            TorchGroup(reach_store(host, port), settings, rank=0, device=torch.device("cpu"), local=True)
    finally:
        group.close()


def test_nobody_at_the_address_is_a_sentence() -> None:
    with pytest.raises(ModelError, match=r"nobody answers at 127\.0\.0\.1:1 "):
        reach_store("127.0.0.1", 1, seconds=0.1)


@pytest.mark.parametrize(
    ("divide", "sentence"),
    [
        (
            Divide(optimizer="Distro", settings=b'{"nonsense": 1}'),
            "rank 1: the optimizer Distro of this machine refuses the run's settings (1 validation error for DistroSettings",
        ),
        (Divide(optimizer="AdamW", settings=b"{}"), "rank 1: the optimizer AdamW of this machine cannot be divided; install the"),
    ],
    ids=["settings", "not divided"],
)
def test_a_rank_whose_optimizer_is_another_ends_all_with_a_sentence(
    start_controller: StartController, context: ModelContext, divide: Divide, sentence: str
) -> None:
    parallelism = Parallelism(tensor=2)
    controller = start_controller(parallelism)
    model_of(context, controller, parallelism)

    def use() -> None:
        number = controller.divide_optimizer(divide, settings=DistroSettings(), create_part=create_part)
        controller.call_parts(number, "bound", [PartValues(), PartValues()], into=[{}, {}])

    with pytest.raises(RanksLost) as raised:
        use()
    assert sentence in str(raised.value)
