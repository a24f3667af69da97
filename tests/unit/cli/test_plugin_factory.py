"""The step "factory" of `psyche plugins check`: what is made of each kind, from what, and why nothing is made of some."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from psyche_core.hookspecs import GROUP
from tests.unit.cli.conftest import Psyche

HOOKS = """
from psyche_core.builtin.memory_transport import MemoryTransport
from psyche_core.errors import ConfigError, ModelError
from psyche_core.hookspecs import (
    BackendRegistration, ShardingRegistration, TransportRegistration, hookimpl
)
from pydantic import BaseModel, ConfigDict, Field

PSYCHE_PLUGIN_API = "1.0"
print("imported")

class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    wires: str = Field(default="", description="Where they lie.")

def create(context):
    print("created")
    if not context.settings.wires:
        raise ConfigError("no wires: use --wires")
    assert context.interface == "127.0.0.1"
    return MemoryTransport.from_context(context)

def refuse(context):
    raise ModelError(f"two ranks are needed, there is {context.group.size}")

class Server:
    def __init__(self, context):
        self.context = context
    async def __aenter__(self):
        raise OSError("the port is taken")
    async def __aexit__(self, *_):
        pass
    address = state = serve = aclose = None

@hookimpl
def psyche_register_transports():
    return [TransportRegistration(name="Made", summary="s", create=create, settings=Settings)]

@hookimpl
def psyche_register_sharding():
    return [ShardingRegistration(name="Made", summary="s", create=refuse)]

@hookimpl
def psyche_register_backends():
    return [BackendRegistration(name="Made", summary="s", create=refuse, create_server=Server)]
"""


def factory(psyche: Psyche, name: str, *options: str) -> tuple[str, str]:
    """Outcome and sentence of the step."""
    result = psyche("plugins", "check", name, "--json", "--no-conformance", "--no-training", *options)
    [step] = [step for step in json.loads(result.out)["steps"] if step["name"] == "factory"]
    assert (result.code == 2) == (step["outcome"] == "failed"), result.out
    return step["outcome"], step["sentence"]


@pytest.mark.parametrize(
    ("name", "outcome", "sentence"),
    [
        ("transport.memory", "ok", "create gives a MemoryTransport"),
        ("transport.quic", "ok", "create gives a QuicTransport"),
        ("relay.iroh", "ok", "create gives an IrohRelay"),
        ("data.Dummy", "ok", "create gives a DummyData"),
        ("data.Local", "skipped", "it needs settings; give them with --settings: "),
        ("model.HfLlama", "skipped", "give the config.json of a small model with --model-config"),
        ("sharding.dtensor", "ok", "create gives a DTensorEngine for a single rank, which places "),
        ("backend.tcp", "ok", "create gives a TcpBackend for its own server at 127.0.0.1:"),
        ("backend.memory", "skipped", "it needs the address of a coordinator, and has no create_server that could make one here"),
    ],
)
def test_what_is_made_of_each_kind(psyche: Psyche, name: str, outcome: str, sentence: str) -> None:
    came, told = factory(psyche, name)
    assert came == outcome, told
    assert told.startswith(sentence)


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_an_engine_for_several_ranks_says_so(psyche: Psyche) -> None:
    outcome, told = factory(psyche, "sharding.deepspeed")
    assert outcome == "skipped", told
    assert told.startswith("it makes no engine for a single rank, and training has two; it says: --sharding deepspeed divides")


def test_a_backend_with_a_wallet(psyche: Psyche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psyche_backend_solana")
    signing = pytest.importorskip("nacl.signing")
    monkeypatch.setenv("HOME", str(tmp_path))
    outcome, told = factory(psyche, "backend.solana")
    assert outcome == "skipped", told
    assert told.startswith("it needs settings; give them with --settings: no wallet given")
    key = signing.SigningKey(bytes([1]) * 32)
    wallet = tmp_path / "id.json"
    wallet.write_text(json.dumps(list(key.encode() + key.verify_key.encode())))
    wallet.chmod(0o600)
    settings = json.dumps({"wallet_private_key_path": str(wallet)})
    assert factory(psyche, "backend.solana", "--settings", settings) == (
        "ok",
        "create gives a SolanaBackend, which finds the run by its name",
    )


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The distribution of HOOKS, installed."""
    info = tmp_path / "made-1.0.dist-info"
    info.mkdir()
    kinds = ("transport", "sharding", "backend")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "".join(f"{kind}.Made = made_plugin_hooks\n" for kind in kinds))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: made\nVersion: 1.0\nRequires-Dist: psyche-core<0.2,>=0.1\n")
    (tmp_path / "made_plugin_hooks.py").write_text(HOOKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield
    sys.modules.pop("made_plugin_hooks", None)
    importlib.invalidate_caches()


@pytest.mark.usefixtures("made")
def test_what_a_plugin_prints_is_no_step(psyche: Psyche) -> None:
    result = psyche("plugins", "check", "transport.Made", "--no-conformance", "--no-training", "--settings", '{"wires": "here"}')
    assert [line.split()[0] for line in result.out.splitlines()] == ["ok"] * 6
    assert "imported\n" in result.err
    assert "created\n" in result.err


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("words", "outcome", "sentence"),
    [
        (("transport.Made",), "skipped", "it needs settings; give them with --settings: no wires: use --wires"),
        (("transport.Made", "--settings", '{"wires": "here"}'), "ok", "create gives a MemoryTransport"),
        (("transport.Made", "--settings", '{"wires": ""}'), "failed", "no wires: use --wires"),
        (
            ("sharding.Made",),
            "skipped",
            "it makes no engine for a single rank, and training has two; it says: two ranks are needed, there is 1",
        ),
        (("backend.Made",), "failed", "the backend plugin Made (made 1.0) failed with OSError: the port is taken"),
    ],
)
def test_what_cannot_be_made_is_a_sentence(psyche: Psyche, words: tuple[str, ...], outcome: str, sentence: str) -> None:
    assert factory(psyche, *words) == (outcome, sentence)
