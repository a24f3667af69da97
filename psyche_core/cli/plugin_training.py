"""The last step of `psyche plugins check`: two processes train a tiny model for a few steps, and the plugin takes part.

A server and two members are a testnet on this machine, each a process of its own. A sharding engine divides one member into two
processes. What is trained lies in a folder of its own, which is gone afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psyche_core.cli.progress_line import plugin_problem, steps_trained
from psyche_core.plugin_errors import labels
from psyche_core.plugins import PluginRecord, PluginRegistry

TRAINING_SECONDS = 300
"""Time limit of the whole step."""

LOOK_SECONDS = 0.5
"""How often it is looked how far they are."""

STEPS = 6
MEMBERS = 2
ROW_TOKENS = 32
_TEXT = b"Strangers train one language model together over the internet.\n" * 20
_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
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
_RUN = """\
run_id = "plugin-check"

[config]
warmup_time = 60
cooldown_time = 1
max_round_train_time = 60
round_witness_time = 2
epoch_time = 600
rounds_per_epoch = {steps}
total_steps = {steps}
init_min_clients = {members}
min_clients = 1
witness_nodes = 0
verification_percent = 0
global_batch_size_start = 4
global_batch_size_end = 4
global_batch_size_warmup_tokens = 0
waiting_for_members_extra_time = 1

[model.LLM]
architecture = {architecture}
max_seq_len = {row_tokens}
data_type = "Pretraining"
cold_start_warmup_steps = 0
checkpoint.Hub = {{ repo_id = {model} }}
data_location = {data}
optimizer = {optimizer}
lr_schedule.Constant = {{ base_lr = 2e-3, warmup_init_lr = 2e-3, warmup_steps = 0 }}
"""


@dataclass(frozen=True, slots=True)
class Tried:
    """How it went: None for `trained` if it was not tried, and a sentence."""

    trained: bool | None
    sentence: str


@dataclass(frozen=True, slots=True)
class _Done:
    """How a program ended: exit status, None if it did not end in time; its last line of standard error; what a member says."""

    status: int | None
    told: str
    blamed: str = ""


Tell = Callable[[str], None]
"""Takes how far it is, for people."""


def try_training(
    record: PluginRecord, settings: Mapping[str, Any], model_config: Mapping[str, Any] | None, *, tell: Tell = lambda _: None
) -> Tried:
    """Train with a plugin. settings: its own table. model_config: a model's config.json. tell: called now and then."""
    kind, name = record.kind, f"{record.distribution}:{record.name}"
    reason = _obstacle(record, settings, model_config)
    if reason:
        return Tried(None, reason)

    # relative paths of a data plugin's table start here, and so does the model's, for which a run has only 64 bytes
    inside = Path.cwd() if kind == "data" else None
    with tempfile.TemporaryDirectory(prefix=".psyche-check-", dir=inside, ignore_cleanup_errors=True) as place:
        folder = Path(place)
        own = {record.name: dict(settings)}
        write_run(
            folder,
            architecture=record.name if kind == "model" else "HfLlama",
            data=own if kind == "data" else {"Local": {"location": str(folder / "tokens")}},
            optimizer=own if kind == "optimizer" else {"AdamW": {}},
            model_config=model_config if kind == "model" else None,
            members=1 if kind == "sharding" else MEMBERS,
            base=inside or folder,
        )
        if kind == "sharding":
            return _divide(folder, name, tell)
        options: tuple[str, ...] = ()
        variables: dict[str, str] = {}
        if kind in ("backend", "transport", "tracker"):
            options = (f"--{kind}", name)
            variables = {f"PSYCHE_{key.upper()}": _word(value) for key, value in settings.items()}
        return _meet(folder, options, variables, tell, base=inside or folder, where=Path.cwd() if settings else folder)


def write_run(
    folder: Path,
    *,
    architecture: str,
    data: Mapping[str, Any],
    optimizer: Mapping[str, Any],
    model_config: Mapping[str, Any] | None,
    members: int,
    base: Path,
) -> None:
    """Write state.toml, a model without weights and tokens.

    data, optimizer: a plugin's name with its table. base: folder at which the relative path of the model starts.
    """
    vocabulary = 65_536 if "Local" not in data else 256
    config = {**_LLAMA, "vocab_size": vocabulary} if model_config is None else model_config
    ids = config.get("vocab_size")
    below = ids if isinstance(ids, int) and 0 < ids < 256 else 256
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    (folder / "tokens").mkdir()
    (folder / "tokens" / "0.bin").write_bytes(struct.pack(f"<{len(_TEXT)}H", *(byte % below for byte in _TEXT)))
    run = _RUN.format(
        steps=STEPS,
        members=members,
        row_tokens=ROW_TOKENS,
        architecture=toml(architecture),
        model=toml((folder / "model").relative_to(base).as_posix()),
        data=toml(data),
        optimizer=toml(optimizer),
    )
    (folder / "state.toml").write_text(run, encoding="utf-8")


def toml(value: Any) -> str:
    """A value of JSON as TOML, on one line; keys that are null are left out, since TOML has no null."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{json.dumps(key)} = {toml(item)}' for key, item in value.items() if item is not None)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)  # TOML's strings, numbers and booleans are JSON's


def _obstacle(record: PluginRecord, settings: Mapping[str, Any], model_config: Mapping[str, Any] | None) -> str:
    """Why nothing can be trained; empty if it can."""
    if record.kind in ("command", "relay"):
        return f"a {record.kind} plugin takes no part in training"
    if record.kind == "store":
        return "only you know a place where it can store models; try one with --model-store, as its documentation says"
    if record.kind == "model" and model_config is None:
        return "give the config.json of a small model with --model-config"
    registry = PluginRegistry.discover()
    table = getattr(registry.load(record.kind, f"{record.distribution}:{record.name}"), "settings", None)
    fields = table.model_fields.items() if table else ()
    required = [key for key, field in fields if field.is_required() and key not in settings]
    if required:
        return f"{', '.join(required)} must be given with --settings"
    if record.kind == "sharding":
        return ""
    there = {(each.kind, each.name) for each in registry.list() if each.status != "disabled"}
    needed = {("backend", "tcp"): "psyche-backend-tcp", ("transport", "quic"): "psyche-p2p-quic"}
    missing = [install for of, install in needed.items() if of[0] != record.kind and of not in there]
    return f"two members need more plugins: pip install {' '.join(missing)}" if missing else ""


def _meet(folder: Path, options: Sequence[str], variables: Mapping[str, str], tell: Tell, *, base: Path, where: Path) -> Tried:
    """A server and members. where: folder in which they start, so that what they write by default is gone, too."""
    out = folder / "out"
    command = ("testnet", "start", "--config-path", str(folder), "--base", str(base), "--num-clients", str(MEMBERS))
    limits = ("--server-port", "0", "--require-steps", str(STEPS), "--time-limit", str(TRAINING_SECONDS), "--allow-lost-shares")
    done = _run(folder, [*command, *limits, "--out", str(out), "--logs", "none", *options], variables, tell, where=where)
    if done.status != 0:
        return Tried(False, _failure(done, f"{MEMBERS} members did not train"))

    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    first, last = (_mean([client["losses"][at][1] for client in report["clients"]]) for at in (0, -1))
    told = f"{MEMBERS} members trained {report['steps']} steps and stayed equal, bit for bit: loss {first:.3f} to {last:.3f}"
    return Tried(True, f"{told}, in {report['wall_seconds']:.0f} s")


def _divide(folder: Path, name: str, tell: Tell) -> Tried:
    """Train one member in two processes: over the data if the engine does that, else with divided layers."""
    done = _Done(None, "")
    for way in ("data", "tensor"):
        events = folder / f"{way}.jsonl"
        command = ("train-local", "--state", str(folder / "state.toml"), "--device", "cpu", "--logs", "none")
        ranks = (f"--{way}-parallelism", "2", "--sharding", name, "--events-file", str(events))
        done = _run(folder, [*command, *ranks], {}, tell, where=folder)
        if done.status == 0:
            lines = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
            losses = [line["loss"] for line in lines if line["event"] == "step_trained"]
            told = f"2 processes of one member trained {len(losses)} steps with --{way}-parallelism 2"
            return Tried(True, f"{told}: loss {losses[0]:.3f} to {losses[-1]:.3f}")

    return Tried(False, _failure(done, "2 processes of one member did not train"))


def _run(folder: Path, arguments: Sequence[str], variables: Mapping[str, str], tell: Tell, *, where: Path) -> _Done:
    """Run `psyche ARGUMENTS`. What it starts is in its process group, and ends with it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    errors = folder / "errors.txt"  # a file: processes that outlive it would keep a pipe open
    with errors.open("w+b") as file:
        program = subprocess.Popen(  # noqa: S603  # our own interpreter
            [sys.executable, "-m", "psyche_core", *arguments],
            cwd=where,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
        )
        try:
            blames = labels(PluginRegistry.discover().places())
            status = _watched(program, folder, tell, blames)
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
                program.wait()
        file.seek(0)
        lines = file.read().decode(errors="replace").splitlines()
    sentences = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
    told = (sentences or [line for line in lines if line.strip()] or [""])[0 if sentences else -1]
    return _Done(status, told, plugin_problem(_event_files(folder), blames))


def _watched(program: subprocess.Popen[bytes], folder: Path, tell: Tell, blames: Collection[str]) -> int | None:
    """The exit status; None if it does not end in time, or a plugin has failed. What it trained is told meanwhile.

    blames: labels of plugins, in which a member's error names what failed.
    """
    end = time.monotonic() + TRAINING_SECONDS + 30
    while True:
        files = _event_files(folder)
        step = steps_trained(files)
        tell(f"training: step {step} of {STEPS}," if step else "training: the processes start,")
        try:
            return program.wait(max(0.0, min(LOOK_SECONDS, end - time.monotonic())))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= end or plugin_problem(files, blames):
                return None


def _event_files(folder: Path) -> list[Path]:
    return [*folder.glob("*.jsonl"), *folder.glob("out/events/*.jsonl")]


def _failure(done: _Done, what: str) -> str:
    if done.blamed:  # the members go on without the share, so what ends them at last says less
        return f"{what}: {done.blamed}"
    if done.status is None:
        return f"{what} within {TRAINING_SECONDS} s: a call of yours hangs"
    return f"{what}, with exit status {done.status}{f': {done.told}' if done.told else ''}"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
