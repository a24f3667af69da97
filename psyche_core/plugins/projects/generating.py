"""The files of a project: templates whose placeholders are filled in.

Templates are plain files with `$placeholders` of `string.Template`. In names of files, `package` stands for the name of the
Python package. Files of `common` go into every project, those of `training` into each that a run file can name.
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
from string import Template

from psyche_core.__about__ import __version__
from psyche_core.errors import UserError
from psyche_core.hookspecs import PLUGIN_API
from psyche_core.plugins.projects.kinds import KINDS, KNOWN, TYPED
from psyche_core.plugins.registration_checks import with_article
from psyche_core.storage.model_stores.url import OWN_SCHEMES, SCHEME

_SUFFIX = ".tmpl"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_][A-Za-z0-9]+)*")
_MAX_NAME = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a project is made from, beside the templates.

    Attributes:
        kind: one of KINDS.
        name: the plugin's name, as runs and options say it.
        year: of the licence.
    """

    kind: str
    name: str
    year: int

    @classmethod
    def of(cls, kind: str, name: str) -> Answers:
        """The answers of a project that is made now."""
        return cls(kind=kind, name=name, year=datetime.now(tz=UTC).year)


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


def generated(answers: Answers) -> dict[str, bytes]:
    """The files of a project, by path. Raises UserError for a kind without a template and for a name that cannot be one."""
    return dict(_contents(answers.kind, words_of(answers)))


def words_of(answers: Answers) -> dict[str, str]:
    """The placeholders' values. Raises UserError as `generated` does."""
    kind, name = answers.kind, answers.name
    if kind not in KNOWN:
        message = f"there is no template of the kind {kind}; there are: {', '.join(KINDS)}"
        raise UserError(message)
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME or keyword.iskeyword(name.lower()):
        message = (
            f"{name!r} cannot be a plugin's name; expected a letter, then letters, digits and single - or _, at most {_MAX_NAME} "
            "characters, and no word of Python"
        )
        raise UserError(message)
    if kind in TYPED and name != name.lower():
        message = f"people type the name of a {kind} plugin, so it has no capital letters; try {name.lower()}"
        raise UserError(message)
    if kind == "tracker" and "-" in name:
        message = f"the options of a tracker begin with its name, so it has no hyphens; try {name.replace('-', '_')}"
        raise UserError(message)

    if kind == "store" and (not SCHEME.fullmatch(name) or name in OWN_SCHEMES):
        message = (
            f"the name of a store is the scheme of URLs, of two letters or more, without _, and none of {', '.join(OWN_SCHEMES)}"
            f"; got {name}"
        )
        raise UserError(message)

    parts = [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[0-9]+", name)]
    major, minor, *_ = __version__.split(".")
    known = KNOWN[kind]
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
        "year": str(answers.year),
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
    templates = files("psyche_core.plugins.projects") / "templates"
    trains = KNOWN[kind].trains
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
