"""What differs between kinds of plugins, beside the files of their templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_TORCH = ("torch>=2.6", "numpy>=2.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What differs between kinds beside their files.

    Attributes:
        dependencies: beside psyche-core.
        modules: the package's further modules, with what they are, for the README.
        trains: the plugin's part in a run file, as (architecture, data location, optimizer), None for the usual one; None for a
            kind whose project has no run file.
        members: how many members its run waits for.
        usage: the end of the README.
        train: the command that trains with it, in the project's folder.
    """

    dependencies: tuple[str, ...] = ()
    modules: Mapping[str, str]
    trains: tuple[str | None, str | None, str | None] | None = None
    members: int = 1
    usage: str
    train: str = "psyche train-local --state run/state.toml"


_OWN = "$name"
_USUAL = (None, None, None)
_TRAIN = "Train with it, on this machine alone:\n\n    $train"
_TESTNET = "psyche testnet start --config-path run --num-clients 2 --server-port 0"

KNOWN: Mapping[str, Kind] = MappingProxyType(
    {
        "optimizer": Kind(
            dependencies=_TORCH,
            modules={
                "settings": "the table `[model.LLM.optimizer.$name]` of a run file",
                "optimizer": "the contract `psyche_core.interfaces.Optimizer`: payloads and how they are applied",
            },
            trains=(None, None, _OWN),
            usage=f"{_TRAIN}\n\nIn another run's `state.toml`:\n\n    [model.LLM.optimizer.$name]\n    momentum = 0.9",
        ),
        "data": Kind(
            modules={
                "settings": "the table `[model.LLM.data_location.$name]` of a run file",
                "provider": "the contract `psyche_core.interfaces.DataProvider`: samples by number",
            },
            trains=(None, _OWN, None),
            usage=f'{_TRAIN}\n\nIn another run\'s `state.toml`:\n\n    [model.LLM.data_location.$name]\n    location = "texts"',
        ),
        "model": Kind(
            dependencies=(*_TORCH, "safetensors>=0.5"),
            modules={"model": "the contract `psyche_core.interfaces.Model`: weights, gradients, checkpoints"},
            trains=(_OWN, None, None),
            usage=f'{_TRAIN}\n\nIn another run\'s `state.toml`: `architecture = "$name"` in `[model.LLM]`.',
        ),
        "tracker": Kind(
            modules={
                "settings": "its options, `--$dashed-dir`",
                "tracker": "the contract `psyche_core.interfaces.Tracker`: keeps figures and texts",
            },
            usage="Use it in any training:\n\n    psyche client train --tracker $name --$dashed-dir figures …",
        ),
        "backend": Kind(
            modules={
                "settings": "a member's options, such as `--$dashed-poll-seconds`",
                "store": "the SQLite file between server and members; write it again for another database",
                "messages": "what is in its rows, and who signed it",
                "client": "the contract `psyche_core.interfaces.Backend`: a member's connection",
                "server": "the contract `psyche_core.interfaces.BackendServer`: a hosted coordinator",
            },
            trains=_USUAL,
            members=2,
            usage=(
                "Train with it, a server and two members on this machine, which reach each other by the transport quic "
                "(`pip install psyche-p2p-quic`):\n\n    $train\n\n"
                "A server of your own prints the address that members give with --server-addr:\n\n"
                "    psyche server run --backend $name --state run/state.toml --save-state-dir saved\n\n"
                "Who can write the file can disturb the run, but cannot speak for another member: requests are signed."
            ),
            train=f"{_TESTNET} --backend $name",
        ),
        "transport": Kind(
            modules={
                "settings": "a member's option `--$dashed-public-address`",
                "handshake": "how two endpoints prove who they are",
                "link": "one connection: frames, messages that the member lacks, blobs that it wants",
                "transport": "the contract `psyche_core.interfaces.Transport`: who is dialed, what is kept and fetched",
            },
            trains=_USUAL,
            members=2,
            usage=(
                "Train with it, a server (`pip install psyche-backend-tcp`) and two members on this machine:\n\n    $train\n\n"
                "All members of a run use the same transport: `psyche client train --transport $name …`. Nothing is encrypted; "
                "use it where you trust the network."
            ),
            train=f"{_TESTNET} --transport $name",
        ),
        "sharding": Kind(
            dependencies=_TORCH,
            modules={"engine": "the contract `psyche_core.interfaces.ShardingEngine`: where each parameter is, and its gradient"},
            trains=_USUAL,
            usage=f"{_TRAIN}\n\nIn a run: `psyche client train --data-parallelism 2 --sharding $name …`.",
            train="psyche train-local --state run/state.toml --device cpu --data-parallelism 2 --sharding $name",
        ),
        "relay": Kind(
            modules={
                "login": "how a member proves who it is, and what is said then",
                "relay": "the contract `psyche_core.interfaces.Relay`: who is connected, a queue for each",
                "client": "a member's connection to it, for the transport that uses it",
            },
            usage=(
                "A server runs it beside its coordinator, and tells members its URL:\n\n    $train\n\n"
                "Members must use a transport that speaks to it (`psyche_core.interfaces.Transport.use_relays`): `client.py` is "
                "its half. What goes through a relay must be encrypted by the members."
            ),
            train="psyche server run --state state.toml --with-relay --relay $name --relay-port 3340",
        ),
        "store": Kind(
            modules={
                "settings": "its options, `--$dashed-folder`",
                "store": "the contract `psyche_core.interfaces.ModelStore`: files by name, whole or not at all",
            },
            usage=(
                "A member that the run elects stores the model there after an epoch:\n\n"
                "    psyche client train --model-store $name://host/models --checkpoint-dir checkpoints …\n\n"
                "From then on the run's `checkpoint` is that place, and members that come when no other is left begin there; "
                "they need this plugin, too. How to try it with one member on this machine: `docs/plugins/kinds/store.md` of "
                "psyche-core. Where it is not given as an option, the folder is that of `PSYCHE_${upper}_FOLDER`. "
                'A run can also begin there, with `checkpoint.Gcs = { bucket = "$name://host/models", prefix = "RUN-step400" }`.'
            ),
        ),
        "command": Kind(
            modules={"command": "the click command"},
            usage="Call it:\n\n    psyche $name --help",
        ),
    }
)

KINDS = tuple(KNOWN)
"""The kinds of plugin for which there is a template."""

TYPED = ("backend", "transport", "sharding", "relay", "tracker", "store", "command")
"""Kinds whose names are words of a command line."""
