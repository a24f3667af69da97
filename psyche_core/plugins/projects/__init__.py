"""Makes the project of a new plugin from the templates in this folder: what `psyche plugins new` writes.

Templates are plain files with `$placeholders` of `string.Template`. copier could also update a project that was made from an
older template, but brings Jinja and a dozen other packages into every installation. What changes between releases here is not a
text that authors own but the contract, and that is in the conformance classes, which they import. In names of files, `package`
stands for the name of the Python package. Files of `common` go into every project, those of `training` into each that a run file
can name.
"""

from __future__ import annotations

import json
import keyword
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from types import MappingProxyType

from psyche_core.__about__ import __version__
from psyche_core.errors import UserError
from psyche_core.hookspecs import PLUGIN_API
from psyche_core.plugins.registration_checks import with_article

_SUFFIX = ".tmpl"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_][A-Za-z0-9]+)*")
_MAX_NAME = 40
_TORCH = ("torch>=2.6", "numpy>=2.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
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

_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "optimizer": _Kind(
            dependencies=_TORCH,
            modules={
                "settings": "the table `[model.LLM.optimizer.$name]` of a run file",
                "optimizer": "the contract `psyche_core.interfaces.Optimizer`: payloads and how they are applied",
            },
            trains=(None, None, _OWN),
            usage=f"{_TRAIN}\n\nIn another run's `state.toml`:\n\n    [model.LLM.optimizer.$name]\n    momentum = 0.9",
        ),
        "data": _Kind(
            modules={
                "settings": "the table `[model.LLM.data_location.$name]` of a run file",
                "provider": "the contract `psyche_core.interfaces.DataProvider`: samples by number",
            },
            trains=(None, _OWN, None),
            usage=f'{_TRAIN}\n\nIn another run\'s `state.toml`:\n\n    [model.LLM.data_location.$name]\n    location = "texts"',
        ),
        "model": _Kind(
            dependencies=(*_TORCH, "safetensors>=0.5"),
            modules={"model": "the contract `psyche_core.interfaces.Model`: weights, gradients, checkpoints"},
            trains=(_OWN, None, None),
            usage=f'{_TRAIN}\n\nIn another run\'s `state.toml`: `architecture = "$name"` in `[model.LLM]`.',
        ),
        "tracker": _Kind(
            modules={
                "settings": "its options, `--$dashed-dir`",
                "tracker": "the contract `psyche_core.interfaces.Tracker`: keeps figures and texts",
            },
            usage="Use it in any training:\n\n    psyche client train --tracker $name --$dashed-dir figures …",
        ),
        "backend": _Kind(
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
        "transport": _Kind(
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
        "sharding": _Kind(
            dependencies=_TORCH,
            modules={"engine": "the contract `psyche_core.interfaces.ShardingEngine`: where each parameter is, and its gradient"},
            trains=_USUAL,
            usage=f"{_TRAIN}\n\nIn a run: `psyche client train --data-parallelism 2 --sharding $name …`.",
            train="psyche train-local --state run/state.toml --device cpu --data-parallelism 2 --sharding $name",
        ),
        "relay": _Kind(
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
        "command": _Kind(
            modules={"command": "the click command"},
            usage="Call it:\n\n    psyche $name --help",
        ),
    }
)

KINDS = tuple(_KINDS)
"""The kinds of plugin for which there is a template."""

_TYPED = ("backend", "transport", "sharding", "relay", "tracker", "command")
"""Kinds whose names are words of a command line."""

_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TEXT = "Strangers train one language model together over the internet.\n" * 40


def make_project(kind: str, name: str, *, out: Path | None = None) -> Path:
    """Write the project of a new plugin, and return its folder.

    kind: one of KINDS. name: the plugin's name, as runs and options will say it. out: the project's folder, which must be missing
    or empty; None for one in the current folder, named like the distribution. Raises UserError; then nothing was written.
    """
    words = _words(kind, name)
    folder = Path(words["distribution"]) if out is None else out
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            message = f"{folder} exists and is not an empty folder; nothing was written; choose another with --out"
            raise UserError(message)
        for path, content in _contents(kind, words):
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    except OSError as error:
        message = f"cannot write the project to {folder}: {error.strerror}"
        raise UserError(message) from error

    return folder


def _words(kind: str, name: str) -> dict[str, str]:
    """The placeholders' values. Raises UserError for a kind without a template and for a name that cannot be one."""
    if kind not in _KINDS:
        message = f"there is no template of the kind {kind}; there are: {', '.join(KINDS)}"
        raise UserError(message)
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME or keyword.iskeyword(name.lower()):
        message = (
            f"{name!r} cannot be a plugin's name; expected a letter, then letters, digits and single - or _, at most {_MAX_NAME} "
            "characters, and no word of Python"
        )
        raise UserError(message)
    if kind in _TYPED and name != name.lower():
        message = f"people type the name of a {kind} plugin, so it has no capital letters; try {name.lower()}"
        raise UserError(message)
    if kind == "tracker" and "-" in name:
        message = f"the options of a tracker begin with its name, so it has no hyphens; try {name.replace('-', '_')}"
        raise UserError(message)

    parts = [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[0-9]+", name)]
    major, minor, *_ = __version__.split(".")
    known = _KINDS[kind]
    dependencies = (f"psyche-core>={major}.{minor},<{_next(major, minor)}", *known.dependencies)
    architecture, data, optimizer = known.trains or (None, None, None)
    words = {
        "kind": kind,
        "a_kind": with_article(kind),
        "A_kind": with_article(kind).capitalize(),
        "name": name,
        "snake": "_".join(parts),
        "dashed": "-".join(parts),
        "upper": "_".join(parts).upper(),
        "cls": "".join(part.capitalize() for part in parts),
        "package": f"psyche_{kind}_{'_'.join(parts)}",
        "distribution": f"psyche-{kind}-{'-'.join(parts)}",
        "model_type": "_".join(parts),
        "magic": f"Psy{''.join(part.capitalize() for part in parts)}"[:12],
        "api": ".".join(map(str, PLUGIN_API)),
        "year": str(datetime.now(tz=UTC).year),
        "dependencies": ", ".join(f'"{each}"' for each in dependencies),
        "architecture": name if architecture else "HfLlama",
        "data": name if data else "Local",
        "location": "texts" if data else "tokens",
        "optimizer": name if optimizer else "AdamW",
        "members": str(known.members),
    }
    rows = (f"| `{words['package']}/{module}.py` | {what} |" for module, what in known.modules.items())
    words["files"] = Template("\n".join(rows)).substitute(words)
    words["train"] = Template(known.train).substitute(words)
    words["usage"] = Template(known.usage).substitute(words)
    return words


def _next(major: str, minor: str) -> str:
    """The first version that may break plugins: before 1.0 the next minor one, see docs/policy.md."""
    return f"0.{int(minor) + 1}" if major == "0" else str(int(major) + 1)


def _contents(kind: str, words: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Paths in the project and what is there."""
    templates = files(__name__) / "templates"
    trains = _KINDS[kind].trains
    for part in ("common", kind, *(["training"] if trains is not None else [])):
        prefix = "run/" if part == "training" else ""
        for path, template in _walk(templates / part):
            named = path.removesuffix(_SUFFIX).replace("package", words["package"])
            yield prefix + named, Template(template.read_text(encoding="utf-8")).substitute(words).encode()
    if trains is None:
        return

    model = {"model_type": words["model_type"], "vocab_size": 256, "hidden_size": 64} if kind == "model" else _LLAMA
    yield "run/model/config.json", (json.dumps(model, indent=2) + "\n").encode()
    if kind == "data":
        yield "run/texts/example.txt", _TEXT.encode()
    else:
        yield "run/tokens/0.bin", struct.pack(f"<{len(_TEXT)}H", *_TEXT.encode())


def _walk(folder: Traversable, path: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        below = f"{path}/{entry.name}".removeprefix("/")
        if entry.is_dir():
            yield from _walk(entry, below)
        elif entry.name.endswith(_SUFFIX):
            yield below, entry
