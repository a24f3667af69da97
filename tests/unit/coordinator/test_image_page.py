"""The page about the canonical image says what the code does, and what it says is true of images and of C structures."""

from __future__ import annotations

import ctypes
import dataclasses
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from psyche_core.config.run_config import to_plain
from psyche_core.coordinator.canonical_image import SIZE, encode, layout, offset
from psyche_core.coordinator.canonical_image.__main__ import main
from psyche_core.coordinator.canonical_image.kinds import U8, U64, Kind
from psyche_core.coordinator.canonical_image.layout import IMAGE
from psyche_core.coordinator.canonical_image.page import markdown
from psyche_core.coordinator.canonical_image.records import List, Record
from psyche_core.coordinator.state import Account, EndReason, EpochEnd, EpochRates, OpenChallenge, Root, Unready
from psyche_core.types import BatchId, ClientState, RunState
from psyche_core.verification.challenge import Stage
from psyche_core.verification.standing import Standing
from psyche_core.wire import codec

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "canonical-image.md"


def test_the_page_is_what_the_code_writes() -> None:
    written = PAGE.read_text()
    assert written == markdown(), (
        "run python -m psyche_core.coordinator.canonical_image --markdown and write docs/reference/canonical-image.md"
    )


def test_the_module_prints_layout_and_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert f"\nsize: {SIZE} bytes\n" in printed
    assert f"Solana rent-exempt minimum: {(128 + SIZE) * 6960} lamports" in printed
    assert main(["--markdown"]) == 0
    assert capsys.readouterr().out == markdown()
    assert main(["--more"]) == 2


Fields = dict[str, tuple[int, int, str]]
"""Field -> offset, bytes, type."""


@cache
def sections() -> dict[str, Fields]:
    """The page's tables by heading."""
    found: dict[str, Fields] = {}
    heading = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        row = re.fullmatch(r"\| (\d+) \| (\d+) \| (.*?) \| `(.*?)` \| .* \|", line)
        if row is not None:
            found.setdefault(heading, {})[row[4]] = (int(row[1]), int(row[2]), row[3])
    return found


def expanded(title: str, start: int = 0, prefix: str = "") -> Fields:
    """Every field of a table by its full name, those in the slots of its lists included."""
    found: Fields = {}
    for name, (at, size, kind) in sections()[title].items():
        slots = re.fullmatch(r"(\d+) × (.*?)( of \d+ bytes)?", kind)
        if slots is None:
            found[prefix + name] = (start + at, size, kind)
            continue
        count, item = int(slots[1]), slots[2]
        assert name.endswith(f"[0..{count - 1}]")
        assert slots[3] in (None, f" of {size // count} bytes")
        for slot in range(count):
            inner = f"{prefix}{name.partition('[')[0]}[{slot}]"
            place = start + at + slot * (size // count)
            if item in sections():
                found |= expanded(item, place, inner + ".")
            else:
                found[inner] = (place, size // count, item)
    return found


@pytest.fixture(scope="module")
def fields() -> Fields:
    return expanded("The image")


def test_the_fields_of_the_page_cover_every_byte_once(fields: Fields) -> None:
    at = 0
    for name, (start, size, _) in fields.items():
        assert start == at, name
        at += size
    assert at == SIZE


@pytest.fixture(scope="module")
def rich(started: Any) -> Any:
    """A state in the middle of an epoch, with something in every list."""
    run = started(5, init_min_clients=2, checkpointers=["0a" * 32, "ff" * 32])
    run.join(8, 9)
    for _ in range(5):
        run.play_round()
    run.do(run.statement(run.elected[0]))
    state = replace(
        run.state,
        lost_samples=77,
        pending_pause=True,
        requeue=(BatchId(1, 2), BatchId(5, 2**62)),
        future_rates=EpochRates(5, 6),
        accounts=(Account(bytes(31) + b"\1", 7, 8), Account(bytes(31) + b"\2", 9, 10)),
        epoch=replace(run.state.epoch, rates=EpochRates(11, 12), seed=13, ending=EndReason.Rounds, lacking=(1,), held_step=14),
        generation=15,
        stored=EpochEnd(16, 17, b"\x12" * 32, (BatchId(19, 20),), 21, b"\x37" * 32),
        ends=(
            EpochEnd(22, 23, b"\x18" * 32, (BatchId(25, 26), BatchId(27, 28)), 29, b"\x38" * 32),
            EpochEnd(30, 31, b"\x20" * 32),
        ),
        unready=(Unready(b"\x21" * 32, 34), Unready(b"\x23" * 32, 36)),
    )
    assert [len(stored.statements) > 0 for stored in state.epoch.rounds] == [True] * 4
    first, *others = state.epoch.clients
    played, *later = state.epoch.rounds
    spoken = replace(played.statements[0], words=b"\x21\x03")
    played = replace(played, recomputing=(0, 3), statements=(spoken, *played.statements[1:]))
    challenge = OpenChallenge(
        height=39,
        trainer=1,
        verifier=2,
        since=41,
        share=(BatchId(42, 43),),
        stage=Stage.TIE_REVEAL,
        complained=True,
        roots=(Root(2, b"\x44" * 32),),
        judges=(0, 3),
        missed=(4,),
    )
    epoch = replace(
        state.epoch,
        clients=(replace(first, standing=Standing(2, 50, (True, False, True))), *others),
        rounds=(played, *later),
        challenges=(challenge, replace(challenge, trainer=3)),
    )
    return replace(state, epoch=epoch)


def expected_bytes(state: Any, name: str, size: int) -> bytes | None:
    """What the page promises for a field, worked out from the state alone; None for a slot that is not in use."""
    if name in ("magic", "version", "size"):
        return {"magic": b"PsycheSt", "version": b"\5\0\0\0", "size": SIZE.to_bytes(4, "little")}[name]
    if name.endswith("padding"):
        return bytes(size)
    value: Any = state
    steps = re.findall(r"\w+", name)
    if steps[-2:-1] == ["words"]:
        words = expected_bytes(state, name[: name.index(".words") + len(".words")], 0)
        return words if words is None else len(words).to_bytes(4, "little") if steps[-1] == "length" else words.ljust(size, b"\0")
    if steps[-1] in ("scores", "high") and steps[-2] == "standing":
        slot = int(steps[2])
        high = state.epoch.clients[slot].standing.high if slot < len(state.epoch.clients) else None
        number = 0 if high is None else len(high) if steps[-1] == "scores" else sum(1 << at for at, one in enumerate(high) if one)
        return None if high is None else bytes([number])
    if steps[0] == "model":
        return expected_of_model(state.model.LLM, steps[1:], size)
    for step in steps:
        if step.isdecimal():
            if int(step) >= len(value):
                return None
            value = value[int(step)]
        elif step == "count":
            value = len(value)
        elif step == "present":
            value = value is not None
        elif step == "value":
            value = value or 0
        else:
            value = getattr(value, step)
    if isinstance(value, bytes):
        return bytes(value)
    if steps[:2] == ["config", "checkpointers"] and isinstance(value, str):
        return bytes.fromhex(value)
    if isinstance(value, str):
        return bytes(value.encode().ljust(size, b"\0"))
    if isinstance(value, tuple):
        value = sum(1 << slot for slot in value)
    return int(value or 0).to_bytes(size, "little")


def expected_of_model(llm: Any, steps: list[str], size: int) -> bytes:
    rest = to_plain(llm)
    tables = codec.encode({key: rest[key] for key in ("architecture", "data_type", "data_location", "lr_schedule", "optimizer")})
    values: dict[str, int | bytes] = {
        "max_seq_len": llm.max_seq_len,
        "cold_start_warmup_steps": llm.cold_start_warmup_steps,
        "checkpoint.kind": 2,
        "checkpoint.first": b"owner/model",
        "checkpoint.second.present": 0,
        "checkpoint.second.value": 0,
        "tables.length": len(tables),
        "tables.content": tables,
    }
    value = values[".".join(steps)]
    return value.ljust(size, b"\0") if isinstance(value, bytes) else value.to_bytes(size, "little")


def test_every_field_of_the_page_holds_what_it_says(rich: Any, fields: Fields) -> None:
    assert rich.model.LLM.checkpoint.name == "Hub"
    image = encode(rich)
    in_use = 0
    for name, (at, size, _) in fields.items():
        expected = expected_bytes(rich, name, size)
        assert image[at : at + size] == (bytes(size) if expected is None else expected), name
        in_use += expected is not None
    assert in_use > 250


CHANGES = {
    "run_id": "other",
    "since": 1,
    "minimum_since": None,
    "lost_samples": 2,
    "progress.epoch": 3,
    "progress.data_index": 2**60,
    "future_rates.slashing_per_client": 9,
    "run_state": RunState.Paused,
    "pending_pause": False,
    "config.epoch_time": 2**64 - 1,
    "config.rounds_per_epoch": 1,
    "config.verification_percent": 100,
    "config.checkpointers[1]": "01" * 32,
    "epoch.seed": 2**64 - 1,
    "epoch.ending": None,
    "epoch.cold_start": True,
    "epoch.ready": (4,),
    "epoch.ceded": (0, 3),
    "instance": b"\1" * 32,
    "from_checkpoint": False,
    "model_lost": True,
    "generation": 2**32 - 1,
    "config.restart_from_checkpoint": True,
    "epoch.lacking": (0, 4),
    "epoch.held_step": 2**40,
    "epoch.ready_since": None,
    "epoch.clients[3].missed": 255,
    "epoch.clients[3].end_digest": b"\2" * 32,
    "stored.lost": 2**40,
    "ends[0].digest": b"\3" * 32,
    "ends[1].data_index": 2**40,
    "unready[1].score": 255,
    "epoch.clients[2].state": ClientState.Ejected,
    "epoch.clients[4].rejoins": 2,
    "epoch.rounds[1].slots": (0, 4),
    "epoch.rounds[2].drain": True,
    "epoch.rounds[3].statements[0].model_digest": b"\xff" * 32,
    "accounts[1].earned": 2**63,
}


def changed(value: Any, path: str, new: Any) -> Any:
    """A copy of a state with the field at the path replaced."""
    name, _, rest = path.partition(".")
    name, _, slot = name.rstrip("]").partition("[")
    inside = getattr(value, name)
    if slot:
        items = list(inside)
        items[int(slot)] = changed(items[int(slot)], rest, new) if rest else new
        made: Any = tuple(items)
    else:
        made = changed(inside, rest, new) if rest else new
    return value.model_copy(update={name: made}) if hasattr(value, "model_copy") else replace(value, **{name: made})


@pytest.mark.parametrize("field", CHANGES)
def test_a_changed_field_changes_its_bytes_and_no_other(rich: Any, fields: Fields, field: str) -> None:
    before, after = encode(rich), encode(changed(rich, field, CHANGES[field]))
    different = {at for at in range(SIZE) if before[at] != after[at]}
    places = [(at, size) for name, (at, size, _) in fields.items() if name == field or name.startswith(f"{field}.")]
    own = {byte for at, size in places for byte in range(at, at + size)}
    assert different
    assert different <= own
    assert offset(field) == min(own)


def structure(kind: Kind, made: dict[str, Any]) -> Any:
    """The kind as a C type with natural alignment: what `#[repr(C)]` would make of its fields."""
    if isinstance(kind, List):
        item = structure(kind.item, made) * kind.capacity
        members = [("count", ctypes.c_uint32), ("padding", ctypes.c_uint32), ("slots", item)]
    elif kind.parts:
        members = [(part.name, structure(part.kind, made)) for part in kind.parts]
    elif kind.size == kind.alignment:
        return {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}[kind.size]
    else:
        return ctypes.c_uint8 * kind.size
    name = f"{kind.title} {len(made)}"
    made[name] = (type(name, (ctypes.LittleEndianStructure,), {"_fields_": members}), kind)
    return made[name][0]


def test_c_structures_with_natural_alignment_have_these_offsets() -> None:
    made: dict[str, Any] = {}
    assert ctypes.sizeof(structure(IMAGE, made)) == SIZE
    for made_of, kind in made.values():
        assert ctypes.sizeof(made_of) == kind.size, kind.title
        assert ctypes.alignment(made_of) == kind.alignment, kind.title
        for part in kind.parts:
            assert getattr(made_of, part.name).offset == part.offset, f"{kind.title}.{part.name}"
        if isinstance(kind, List):
            assert made_of.slots.offset == kind.part(0).offset
    assert len(made) > 15


def test_no_field_of_the_state_is_left_out() -> None:
    records = [kind for kind in vars(layout).values() if isinstance(kind, Record)]
    seen = set()
    for record in records:
        table = getattr(layout, record.title, None)
        if table is None or record.title == "ModelConfig":
            continue
        names = table.model_fields if hasattr(table, "model_fields") else [field.name for field in dataclasses.fields(table)]
        stored = {part.name for part in record.parts if not part.kind.without_value}
        if record.title == "Standing":  # three scores in two bytes
            stored = stored - {"scores"}
        assert stored == set(names), record.title
        seen.add(record.title)
    assert len(seen) == 16, seen


def test_fields_off_their_alignment_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Odd\.second would start at byte 1, which needs alignment 8"):
        Record("Odd", dict, [("first", U8, ""), ("second", U64, "")])
    with pytest.raises(ValueError, match="Odd has 9 bytes, which needs a multiple of 8"):
        Record("Odd", dict, [("first", U64, ""), ("second", U8, "")])
