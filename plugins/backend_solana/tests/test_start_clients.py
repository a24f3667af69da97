"""`psyche run-manager --env-file` itself, on a local chain: packages that pip installs, images that docker runs, signals.

The clients are stubs which note what they are given and told; a real one trains in tests/e2e/test_solana_start.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from model_runs import OWNER, make_run_at, wallet_of
from start_parts import DOCKER, notes, until, write_client_wheels, write_stub

from psyche_backend_solana.commands.client.image import Containers, prepare_image
from psyche_backend_solana.commands.client.plan import Image
from psyche_backend_solana.commands.client.process import Client
from psyche_backend_solana.layouts import coordinator as program
from psyche_backend_solana.localnet import LAMPORTS_PER_SOL, ChainSettings, LocalChain
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_backend_solana.sending.sender import Sender
from psyche_core.testing.backend import small_state
from psyche_core.wire.signing import SecretKey

MEMBER = wallet_of(SecretKey(b"\1" * 32))
SECRET = json.dumps(list(bytes(MEMBER._keypair)))


class Managed:
    """A chain with one run, a folder of a member, and managers of it."""

    def __init__(self, chain: LocalChain, run: program.Run, folder: Path) -> None:
        self.chain = chain
        self.run = run
        self.folder = folder
        self.log = folder / "stub.log"
        self.said = folder / "said"
        self.wallet = folder / "my, wallet.json"
        MEMBER.save(self.wallet)
        self.file = {"WALLET_PATH": str(self.wallet), "RPC": chain.rpc_url, "WS_RPC": chain.ws_url, "RUN_ID": "run"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PSYCHE_", "PIP_"))}
        self.environment = kept | {
            "STUB_LOG": str(self.log),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }

    async def ask_for(self, version: str) -> None:
        """Set the version that the run asks for."""
        async with Rpc([Endpoint(self.chain.rpc_url, self.chain.ws_url)]) as rpc:
            change = program.update(self.run, program.Update(client_version=version), authority=OWNER.pubkey)
            await Sender(rpc, OWNER).send(change, timeout=20.0)

    @asynccontextmanager
    async def manager(self, *words: str) -> AsyncIterator[anyio.abc.Process]:
        """A manager, in a session of its own as under a terminal; what it says is in `said`."""
        env_file = self.folder / "run.env"
        env_file.write_text("".join(f"{name}={value}\n" for name, value in self.file.items()))
        command = [
            sys.executable,
            "-m",
            "psyche_core",
            "run-manager",
            "--env-file",
            str(env_file),
            "--version-interval",
            "0.2",
            *words,
        ]
        with self.said.open("ab") as said:
            process = await anyio.open_process(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
        try:
            yield process
        except BaseException:
            print(self.said.read_text())
            raise
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    process.terminate()
                    process.terminate()
                    with anyio.move_on_after(20):
                        await process.wait()

    async def end(self, *words: str) -> tuple[int, str]:
        """Run a manager to its end; its exit code, and what it said."""
        async with self.manager(*words) as manager:
            with anyio.fail_after(60):
                code = await manager.wait()
        return code, self.said.read_text()

    def notes(self, what: str) -> list[dict[str, Any]]:
        return notes(self.log, what)


@pytest.fixture
async def managed(tmp_path: Path) -> AsyncIterator[Managed]:
    async with LocalChain(ChainSettings(slot_ms=20)) as chain:
        for wallet in (OWNER, MEMBER):
            await chain.airdrop(str(wallet.pubkey), 100 * LAMPORTS_PER_SOL)
        run = await make_run_at(Endpoint(chain.rpc_url, chain.ws_url), small_state(run_id="run"))
        yield Managed(chain, run, tmp_path)


@pytest.mark.soak  # makes environments and installs into them
@pytest.mark.timeout(400)  # processes that import torch, on a busy machine
async def test_a_version_is_installed_by_pip_run_and_replaced_when_the_run_asks_for_another(managed: Managed) -> None:
    packages = managed.folder / "packages"
    write_client_wheels(packages, "9.9.9")
    managed.file |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(packages), "ALLOW_INSTALL": "1", "HF_TOKEN": "token"}
    managed.environment["PYTHONPATH"] = os.pathsep.join([str(managed.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    await managed.ask_for("v9.9.9")
    async with managed.manager("--", "--device", "cpu") as manager:
        await until(lambda: managed.notes("started"))
        (client,) = managed.notes("started")
        assert client["name"] == "9.9.9"
        assert client["argv"] == ["client", "train", "--backend=solana", "--run-id=run", "--device", "cpu"]
        given = client["environment"]
        assert given["PSYCHE_WALLET_PRIVATE_KEY_PATH"] == str(managed.wallet)
        assert (given["PSYCHE_RPC"], given["HF_TOKEN"]) == (managed.chain.rpc_url, "token")
        assert "PYTHONPATH" not in given, "our own modules are not for another version"

        write_client_wheels(packages, "9.9.10")
        await managed.ask_for("9.9.10")
        await until(lambda: len(managed.notes("started")) == 2)
        assert managed.notes("started")[1]["name"] == "9.9.10"
        assert [note["signal"] for note in managed.notes("told")] == [signal.SIGINT]

        os.killpg(manager.pid, signal.SIGINT)  # as a terminal does at Ctrl-C
        with anyio.fail_after(30):
            assert await manager.wait() == 0
        assert [note["what"] for note in notes(managed.log)] == ["started", "told", "left"] * 2

    made = managed.folder / "cache" / "psyche" / "clients" / f"9.9.10-{sys.implementation.cache_tag}"
    whole = (made / "psyche-environment.json").stat().st_mtime_ns
    (packages / "psyche_core-9.9.10-py3-none-any.whl").unlink()
    async with managed.manager() as manager:
        await until(lambda: len(managed.notes("started")) == 3)
        assert (made / "psyche-environment.json").stat().st_mtime_ns == whole, "it is used again, and pip is not asked"
        manager.send_signal(signal.SIGTERM)
        await manager.wait()

    (made / "psyche-environment.json").unlink()
    code, said = await managed.end()
    assert code == 2, "what is not whole is made anew"
    assert "Error: pip could not install psyche-core[" in said
    assert SECRET not in said


async def test_a_version_is_not_installed_unless_that_is_allowed(managed: Managed) -> None:
    await managed.ask_for("9.9.9")
    code, said = await managed.end()
    assert code == 2
    assert "Error: the run asks for client version '9.9.9', this is" in said
    assert not (managed.folder / "cache").exists()


async def test_an_image_is_pulled_and_run_without_a_secret_on_any_command_line(managed: Managed) -> None:
    write_stub(managed.folder / "bin" / "docker", DOCKER)
    managed.file |= {
        "MICRO_BATCH_SIZE": "4",
        "HF_TOKEN": "the token",
        "CONTAINER_OPTIONS": "--memory 8g",
        "ALLOW_IMAGE": "owner/",
    }
    await managed.ask_for("owner/client:1")
    async with managed.manager("--", "--device", "cpu") as manager:
        await until(lambda: managed.notes("started"))
        pull, run = (note["words"] for note in managed.notes("docker"))
        image = "docker.io/owner/client:1"
        assert pull == ["pull", image]
        at = run.index(image)
        assert run[at + 1 :] == ["client", "train", "--backend=solana", "--run-id=run", "--device", "cpu"]
        options = run[:at]
        assert {"--rm", "--init", "--network=host", "--entrypoint=psyche", "--memory"} < set(options)
        assert not any("privileged" in option and "no-new" not in option for option in options)
        assert f'--mount=type=bind,"src={managed.wallet}",dst=/run/psyche/wallet.json,readonly' in options
        names = {options[place + 1] for place, option in enumerate(options) if option == "-e"}
        assert {"PSYCHE_RPC", "PSYCHE_MICRO_BATCH_SIZE", "HF_TOKEN", "PSYCHE_WALLET_PRIVATE_KEY_PATH"} <= names
        assert not any("=" in name for name in names), "values stay in the environment"
        assert "STUB_LOG" not in names, "of the environment only what is psyche's"
        (client,) = managed.notes("started")
        assert client["environment"]["PSYCHE_WALLET_PRIVATE_KEY_PATH"] == "/run/psyche/wallet.json"
        assert client["environment"]["HF_TOKEN"] == "the token"
        assert "the token" not in json.dumps([pull, run])

        await managed.ask_for("owner/client:2")
        await until(lambda: len(managed.notes("started")) == 2)
        runs = [note["words"] for note in managed.notes("docker") if note["words"][0] == "run"]
        assert "docker.io/owner/client:2" in runs[1]
        assert len({word for words in runs for word in words if word.startswith("--name=psyche-")}) == 2

        await managed.ask_for("stranger/client:1")
        with anyio.fail_after(60):
            assert await manager.wait() == 2
    said = managed.said.read_text()
    assert "allow it with --allow-image docker.io/stranger/client" in said
    assert [note["signal"] for note in managed.notes("told")] == [signal.SIGINT] * 2
    assert not any(note["words"][0] == "stop" for note in managed.notes("docker"))


async def test_an_image_that_cannot_be_pulled_is_run_where_it_is_here(managed: Managed) -> None:
    write_stub(managed.folder / "bin" / "podman", DOCKER)
    managed.environment |= {"STUB_PULL": "1", "PSYCHE_RAW_WALLET_PRIVATE_KEY": SECRET}
    del managed.file["WALLET_PATH"]
    digest = "sha256:" + "ab" * 32
    await managed.ask_for(digest)
    words = ("--allow-image", "ghcr.io/owner/client", "--container-program", "podman", "--container-option=--cpus=2")
    code, said = await managed.end(*words)
    assert code == 2
    assert f"could not pull the image ghcr.io/owner/client@{digest} (exit code 1)" in said
    code, said = await managed.end(*words, "--local")
    assert code == 2
    assert "is not on this machine, and --local forbids pulling it" in said
    managed.environment["STUB_HERE"] = "1"
    async with managed.manager(*words) as manager:
        await until(lambda: managed.notes("started"))
        (client,) = managed.notes("started")
        command = managed.notes("docker")[-1]["words"]
        assert "PSYCHE_RAW_WALLET_PRIVATE_KEY" in command
        assert client["environment"]["PSYCHE_RAW_WALLET_PRIVATE_KEY"] == SECRET
        assert SECRET not in json.dumps(command)
        assert "--cpus=2" in command
        assert not any(word.startswith("--mount=type=bind") for word in command)
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # these tests were started with nohup, and so is the manager
        manager.send_signal(signal.SIGTERM if ignored else signal.SIGHUP)
        with anyio.fail_after(30):
            assert await manager.wait() == 0
    assert SECRET not in managed.said.read_text()


async def test_without_docker_and_podman_an_image_is_one_sentence(managed: Managed) -> None:
    await managed.ask_for("owner/client:1")
    code, said = await managed.end("--allow-image", "owner/client", "--container-program", "no-such-docker")
    assert code == 2
    assert "Error: the run asks for a container image, and there is no no-such-docker here: install docker or podman" in said


async def test_ctrl_c_reaches_the_client_once_and_a_second_one_ends_it(managed: Managed) -> None:
    write_stub(managed.folder / "bin" / "docker", DOCKER)
    await managed.ask_for("owner/client:1")
    hold = managed.folder / "hold"
    managed.environment["STUB_HOLD"] = str(hold)
    words = ("--allow-image", "owner/client")
    async with managed.manager(*words) as manager:
        await until(lambda: managed.notes("started"))
        os.killpg(manager.pid, signal.SIGINT)
        await until(lambda: managed.notes("told") and "stopping: the client leaves" in managed.said.read_text())
        assert manager.returncode is None
        hold.touch()
        with anyio.fail_after(30):
            assert await manager.wait() == 0
        assert len(managed.notes("told")) == 1
    hold.unlink()
    async with managed.manager(*words) as manager:
        await until(lambda: len(managed.notes("started")) == 2)
        os.killpg(manager.pid, signal.SIGINT)
        await until(lambda: len(managed.notes("told")) == 2)
        os.killpg(manager.pid, signal.SIGINT)
        with anyio.fail_after(30):
            assert await manager.wait() == 130
        assert len(managed.notes("told")) == 3


async def test_a_manager_that_is_stopped_while_it_installs_ends_pip_too(managed: Managed) -> None:
    managed.file |= {"ALLOW_INSTALL": "1", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(managed.folder)}
    await managed.ask_for("9.9.9")
    async with managed.manager() as manager:
        await until(lambda: "installing psyche-core 9.9.9" in managed.said.read_text())
        manager.send_signal(signal.SIGTERM)
        with anyio.fail_after(30):
            assert await manager.wait() == 143


@pytest.mark.parametrize(("program", "option"), [("docker", "--gpus=all"), ("podman", "--device=nvidia.com/gpu=all")])
async def test_gpus_are_handed_over_where_there_are_any(tmp_path: Path, program: str, option: str) -> None:
    path = write_stub(tmp_path / program, DOCKER)
    environment = os.environ | {"STUB_LOG": str(tmp_path / "log"), "STUB_HERE": "1", "PSYCHE_CACHE_DIR": "/mine"}
    for gpus in (True, False):
        containers = Containers(program=str(path), local=True, gpus=gpus)
        image = Image("a.b/c:1")
        ready = await prepare_image(image, containers, ("client",), environment=environment, given={}, wallet=None)
        words = ready().arguments
        assert (option in words) == gpus
        assert not any(word.startswith("--mount") for word in words), "who names a cache folder cares for it"
    assert [note["words"][0] for note in notes(tmp_path / "log")] == ["image", "image"], "nothing was pulled"


async def test_a_container_that_does_not_leave_is_stopped_by_docker(tmp_path: Path) -> None:
    path, log = write_stub(tmp_path / "docker", DOCKER), tmp_path / "log"
    environment = os.environ | {"STUB_LOG": str(log), "STUB_HOLD": str(tmp_path / "never")}
    ready = await prepare_image(
        Image("a.b/c:1"), Containers(program=str(path)), (), environment=environment, given={}, wallet=None
    )
    launch = ready()
    client = await Client.start(launch)
    await until(lambda: notes(log, "started"))
    await client.leave(grace=0.05, firm=30.0)
    assert await client.wait() == -signal.SIGKILL
    assert [note["signal"] for note in notes(log, "told")] == [signal.SIGINT]
    name = next(word.removeprefix("--name=") for word in launch.arguments if word.startswith("--name="))
    assert ["stop", "-t", "10", name] in [note["words"] for note in notes(log, "docker")]
