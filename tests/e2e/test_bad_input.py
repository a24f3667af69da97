"""What a user can get wrong: one clear sentence, the right exit code, no traceback."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from psyche_core.telemetry.events import Joined, Started
from psyche_core.telemetry.sinks import from_json
from psyche_core.training.checkpoints.journal.lock import journal_path, lock_journal
from psyche_core.wire.signing import SecretKey
from tests.conftest import LocalTestnet
from tests.e2e.conftest import Program
from tests.e2e.conftest import Started as Start

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(120)]

StartClient = Callable[..., Program]


def the_sentence(process: Program, *, code: int) -> str:
    """What it said on stderr, when it said one sentence and ended with that code."""
    _, complained = process.communicate(timeout=60)
    assert process.returncode == code, complained
    errors = [line for line in complained.splitlines() if line]
    assert len(errors) == 1, complained
    assert errors[0].startswith("Error: ")
    return errors[0]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def served(start: Start, run: Path) -> str:
    """The address of a new server that hosts the run in a folder."""
    server = start("server", "run", "--state", run / "state.toml", "--data-config", run / "data.toml", "--logs", "json")
    assert server.stdout is not None
    for line in server.stdout:
        parsed = from_json(line)
        if parsed is not None and isinstance(parsed[1], Started):
            return parsed[1].address
    pytest.fail(f"the server did not start: {server.communicate()}")


@pytest.fixture
def server_address(start: Start, short_run: Path) -> str:
    """A server that hosts the short run."""
    return served(start, short_run)


@pytest.fixture
def client(start: Start) -> StartClient:
    """Start a client of the server's run with some options changed."""

    def start_client(*, fresh: bool = False, **changes: object) -> Program:
        options = {"run-id": "local-testnet"} | {name.replace("_", "-"): value for name, value in changes.items()}
        flat = [part for name, value in options.items() for part in (f"--{name}", value)]
        return start("client", "train", *flat, "--logs", "none", fresh=fresh)

    return start_client


@pytest.mark.parametrize("command", [("server", "run"), ("server", "validate-config")])
def test_a_missing_state_file(start: Start, command: tuple[str, str]) -> None:
    assert "nowhere.toml: No such file" in the_sentence(start(*command, "--state", "nowhere.toml"), code=2)


def test_a_testnet_without_a_run(start: Start, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    process = start("testnet", "start", "--num-clients", 2, "--config-path", tmp_path / "empty")
    assert "state.toml: No such file" in the_sentence(process, code=2)


def test_broken_toml(start: Start, short_run: Path) -> None:
    (short_run / "state.toml").write_text("run_id = \n")
    assert "not valid TOML" in the_sentence(start("testnet", "start", "--num-clients", 2, "--config-path", short_run), code=2)


@pytest.mark.parametrize("clients", [0, "three"])
def test_a_number_of_clients_that_is_none(start: Start, short_run: Path, clients: object) -> None:
    process = start("testnet", "start", "--num-clients", clients, "--config-path", short_run)
    _, complained = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "--num-clients" in complained
    assert "Traceback" not in complained


def test_a_port_in_use_by_the_testnet(start: Start, run_of_two: Path, taken_port: int) -> None:
    process = start("testnet", "start", "--num-clients", 2, "--config-path", run_of_two, "--server-port", taken_port)
    assert f"cannot use port {taken_port}" in the_sentence(process, code=2)


def test_a_data_port_in_use_is_the_testnet_s_sentence_too(
    start: Start, local_testnet: LocalTestnet, free_port: Callable[[], int], taken_port: int, tmp_path: Path
) -> None:
    config = local_testnet()
    state = config / "state.toml"
    lines = [
        f'Server = "127.0.0.1:{taken_port}"' if line.startswith("Server = ") else line for line in state.read_text().splitlines()
    ]
    state.write_text("\n".join(lines))
    process = start(
        "testnet", "start", "--num-clients", 3, "--config-path", config, "--server-port", free_port(), "--out", tmp_path / "out"
    )
    assert str(taken_port) in the_sentence(process, code=2)


def test_a_wrong_run_id(client: StartClient, server_address: str) -> None:
    """Started from nothing: what a client imports says nothing either."""
    sentence = the_sentence(client(server_addr=server_address, run_id="another-run", fresh=True), code=2)
    assert "another-run" in sentence or "local-testnet" in sentence


def no_key(path: Path) -> None:
    """There is none."""


def short_key(path: Path) -> None:
    path.write_bytes(b"too short")
    path.chmod(0o600)


def open_key(path: Path) -> None:
    path.write_bytes(b"k" * 32)
    path.chmod(0o644)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (no_key, "No such file"),
        (short_key, "must hold 32 raw bytes"),
        (open_key, "(mode 644); take that away with `chmod 600 "),
        (os.mkfifo, "is a named pipe, expected a regular file"),
    ],
)
def test_a_wrong_key_file(client: StartClient, tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    key = tmp_path / "me.key"
    make(key)
    assert said in the_sentence(client(server_addr="127.0.0.1:1", identity_secret_key_path=key), code=2)


def joined(process: Program) -> None:
    """Read what a client writes up to where it has joined."""
    assert process.stdout is not None
    for line in process.stdout:
        parsed = from_json(line)
        if parsed is not None and isinstance(parsed[1], Joined):
            return
    pytest.fail(f"it did not join: {process.communicate()}")


def test_a_key_that_another_client_uses(start: Start, client: StartClient, run_of_two: Path) -> None:
    """The newcomer is refused, not the one that takes part. One that is killed and started again at once gets in."""
    server_address = served(start, run_of_two)
    key = run_of_two / "me.key"
    SecretKey.generate().save(key)
    with_key = ("client", "train", "--run-id", "local-testnet", "--server-addr", server_address, "-i", key, "--base", run_of_two)
    first = start(*with_key, "--logs", "json")
    joined(first)
    second = client(server_addr=server_address, identity_secret_key_path=key, base=run_of_two)
    assert "another client takes part with this key now" in the_sentence(second, code=2)
    assert first.poll() is None

    first.kill()
    joined(start(*with_key, "--logs", "json"))


def in_use(folder: Path) -> Iterator[None]:
    with lock_journal(folder, "local-testnet"):
        yield


def with_a_pipe(folder: Path) -> Iterator[None]:
    os.mkfifo(journal_path(folder, "local-testnet"))
    yield


@pytest.mark.parametrize(
    ("make", "said"),
    [(in_use, "another process uses the journal"), (with_a_pipe, "is a named pipe, expected a regular file; move it away")],
    ids=["in-use", "pipe"],
)
def test_a_folder_of_checkpoints_that_cannot_be_used(
    client: StartClient, tmp_path: Path, make: Callable[[Path], Iterator[None]], said: str
) -> None:
    """Told before anybody is connected to: nothing listens at that address."""
    saved = tmp_path / "saved"
    saved.mkdir()
    with contextmanager(make)(saved):
        assert said in the_sentence(client(server_addr="127.0.0.1:1", checkpoint_dir=saved), code=2)


@pytest.mark.parametrize(
    ("option", "name", "said"),
    [
        ("transport", "quik", "did you mean quic?"),
        ("backend", "ethereum", "no backend plugin is named ethereum"),
        ("backend", "tpc", "did you mean tcp?"),
    ],
)
def test_a_plugin_that_is_not_there(client: StartClient, option: str, name: str, said: str) -> None:
    assert said in the_sentence(client(server_addr="127.0.0.1:1", **{option: name}), code=2)


def test_an_address_without_a_port(client: StartClient) -> None:
    assert "nowhere" in the_sentence(client(server_addr="nowhere"), code=2)


def test_a_setting_out_of_range(start: Start) -> None:
    process = start("client", "train", "--run-id", "r", "--server-addr", "127.0.0.1:1", "--keep-steps", "0")
    assert "--keep-steps: got 0" in the_sentence(process, code=2)


def test_a_garbage_peer_does_not_disturb_the_server(start: Start, server_address: str, client: StartClient) -> None:
    """Its connection is closed; the next one is served."""
    host, _, port = server_address.partition("#")[0].rpartition(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096, os.urandom(64)):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.settimeout(30)
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                continue
    assert "you asked for 'another-run'" in the_sentence(client(server_addr=server_address, run_id="another-run"), code=2)
