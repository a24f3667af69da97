"""What is no canonical image, and what has none: each is refused with the field and the byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.config.rules import MAX_TABLES_BYTES
from psyche_core.coordinator.canonical_image import SIZE, decode, encode, offset
from psyche_core.coordinator.canonical_image.layout import IMAGE
from psyche_core.coordinator.canonical_image.page import rows, slot_records
from psyche_core.coordinator.state import (
    Account,
    Client,
    EpochEnd,
    Unready,
)
from psyche_core.errors import WireError
from psyche_core.wire import codec
from tests.unit.coordinator.image_states import (
    FULL,
    SMALL,
    choices,
    identity,
    intervals,
    key,
    model,
    plain_values,
    synthetic,
    tables,
)


# ---------------------------------------------------------------- hostile bytes
def refused_or_canonical(image: bytes) -> bool:
    """Decode; whether the image was accepted. Any exception but WireError fails the test."""
    try:
        state = decode(image)
    except WireError:
        return False
    assert encode(state) == image
    return True


def patched(image: bytes, at: int, value: bytes) -> bytes:
    return image[:at] + value + image[at + len(value) :]


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_changed_bytes_are_refused_or_another_canonical_image(data: Any) -> None:
    image = encode(synthetic(**data.draw(st.sampled_from([SMALL, {**SMALL, "clients": 1, "statements": 1, "pending": 0}]))))
    used = [place for place, byte in enumerate(image) if byte]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(used) | st.integers(0, SIZE - 1) | st.integers(0, 400))
        one_bit = bytes([image[at] ^ 1 << data.draw(st.integers(0, 7))])
        value = data.draw(st.just(one_bit) | st.binary(min_size=1, max_size=8))
        image = patched(image, at, value)[:SIZE]
    refused_or_canonical(image)


@settings(deadline=None)
@given(st.binary(max_size=400), st.binary(max_size=400), st.integers(0, SIZE))
def test_any_bytes_raise_nothing_else(front: bytes, middle: bytes, at: int) -> None:
    good = encode(synthetic(**SMALL))
    refused_or_canonical(front)
    refused_or_canonical((good[:16] + front).ljust(SIZE, b"\0"))
    refused_or_canonical(patched(good, at, middle)[:SIZE])


def with_tables(value: Any) -> bytes:
    """An image with other bytes as the model's tables: given as they are, or anything to encode."""
    content = value if isinstance(value, bytes) else codec.encode(value)
    image = patched(encode(synthetic(**SMALL)), offset("model.tables.length"), len(content).to_bytes(4, "little"))
    return patched(image, offset("model.tables.content"), content.ljust(MAX_TABLES_BYTES, b"\0"))


@settings(deadline=None)
@given(st.data())
def test_any_tables_of_a_model_are_refused_or_canonical(data: Any) -> None:
    table = codec.decode(tables(model()), max_bytes=MAX_TABLES_BYTES)
    for name in data.draw(st.sets(st.sampled_from([*table, "checkpoint", "more"]), max_size=2)):
        table[name] = data.draw(plain_values | choices)
    if data.draw(st.booleans()):
        table = data.draw(plain_values | st.binary(max_size=60) | st.dictionaries(st.integers(0, 9), plain_values))
    refused_or_canonical(with_tables(table))


def test_tables_have_one_spelling() -> None:
    table = codec.decode(tables(model()), max_bytes=MAX_TABLES_BYTES)
    assert refused_or_canonical(with_tables(table))
    whole = {"Constant": {"base_lr": 1, "warmup_init_lr": 0.0, "warmup_steps": 2}}
    for name, spelling in (("data_location", {"Server": {"location": "here"}}), ("lr_schedule", whole)):
        with pytest.raises(WireError, match=r"model\.tables\.content at byte \d+: expected the model's tables in the form"):
            decode(with_tables({**table, name: spelling}))


def slots_of(state: Any, path: str = "") -> dict[str, Any]:
    """Where records start in the image and which they are: the image itself and every slot in use."""
    found = {"": IMAGE}
    for name, record in (
        ("epoch.clients", "Client"),
        ("epoch.challenges", "OpenChallenge"),
        ("pending", "NodeIdentity"),
        ("requeue", "BatchId"),
        ("accounts", "Account"),
        ("ends", "EpochEnd"),
        ("unready", "Unready"),
    ):
        held, _, last = name.rpartition(".")
        items = getattr(state.epoch if held else state, last)
        found |= {f"{name}[{slot}]": slot_records(IMAGE)[record] for slot in range(len(items))}
    for at, end in (("stored", state.stored), *((f"ends[{place}]", end) for place, end in enumerate(state.ends))):
        found |= {f"{at}.queue[{slot}]": slot_records(IMAGE)["BatchId"] for slot in range(len(end.queue))}
    for place, challenge in enumerate(state.epoch.challenges):
        at = f"epoch.challenges[{place}]"
        found |= {f"{at}.share[{slot}]": slot_records(IMAGE)["BatchId"] for slot in range(len(challenge.share))}
        found |= {f"{at}.roots[{slot}]": slot_records(IMAGE)["Root"] for slot in range(len(challenge.roots))}
    for place, stored in enumerate(state.epoch.rounds):
        at = f"epoch.rounds[{place}]"
        found[at] = slot_records(IMAGE)["Round"]
        found |= {f"{at}.batches[{slot}]": slot_records(IMAGE)["BatchId"] for slot in range(len(stored.batches))}
        found |= {f"{at}.statements[{slot}]": slot_records(IMAGE)["WitnessStatement"] for slot in range(len(stored.statements))}
    return found


def test_every_padding_byte_must_be_zero() -> None:
    state = synthetic(**SMALL)
    image = encode(state)
    tried = 0
    for start, record in slots_of(state).items():
        for row in rows(record):
            if not row.name.endswith("padding"):
                continue
            for byte in range(row.size):
                at = (offset(start) if start else 0) + row.offset + byte
                with pytest.raises(WireError, match=rf" at byte {at}: expected zero in padding, got 0x80"):
                    decode(patched(image, at, b"\x80"))
                tried += 1
    assert tried == 75 + 2 * 4 + 4 * (3 + 4 + 4) + 8 * (2 + 4) + 3 * (2 + 4 * 4) + 3 * 2 * 2 + 3 * 1


@pytest.mark.parametrize(
    "field",
    [
        "config.checkpointers",
        "epoch.clients",
        "epoch.rounds[3].batches",
        "epoch.rounds[0].statements",
        "pending",
        "requeue",
        "accounts",
        "ends",
        "ends[1].queue",
        "stored.queue",
        "unready",
    ],
)
def test_unused_slots_must_be_zero(field: str) -> None:
    image = encode(synthetic(**SMALL))
    used = SMALL[field.rpartition(".")[2]]
    first = offset(f"{field}[{used}]")
    last = offset(f"{field}[{FULL[field.rpartition('.')[2]] - 1}]") + (offset(f"{field}[1]") - offset(f"{field}[0]")) - 1
    for at in (first, first + 1, (first + last) // 2, last):
        with pytest.raises(
            WireError, match=rf"^.*{field.rpartition('.')[2]}\[{used}\] at byte {at}: expected zero in unused slots"
        ):
            decode(patched(image, at, b"\1"))


def test_unused_rounds_must_be_zero() -> None:
    image = encode(synthetic(**{**SMALL, "rounds": 1}))
    for at in (offset("epoch.rounds[1]"), offset("epoch.rounds[3].statements[31].model_digest") + 31):
        with pytest.raises(WireError, match=rf"^epoch\.rounds\[1\] at byte {at}: expected zero in unused slots"):
            decode(patched(image, at, b"\1"))


SIGNER = identity(0).signer


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("magic", b"X", "magic at byte 0: expected b'PsycheSt', got b'XsycheSt'; this is no image of a coordinator's state"),
        ("version", b"\1", "version at byte 8: expected 5, got 1; update the older side"),
        ("size", b"\0", f"size at byte 12: expected {SIZE}, got"),
        ("run_id", b"a\0b", "run_id at byte 17: expected nothing but zero bytes after the end of the text"),
        ("run_id", b"a\xffrun", "run_id at byte 17: expected UTF-8, got 0xff"),
        ("run_id", bytes(32), "run_id at byte 16: expected a name"),
        ("minimum_since.present", b"\0", "minimum_since.value at byte 96: expected zero where nothing is present"),
        ("minimum_since.present", b"\2", "minimum_since.present at byte 88: expected a number of 0 False, 1 True, got 2"),
        ("run_state", b"\x08", "run_state at byte 152: expected a number of 0 Uninitialized, 1 WaitingForMembers"),
        ("pending_pause", b"\2", "pending_pause at byte 153: expected a number of"),
        ("model.checkpoint.kind", b"\6", "model.checkpoint.kind at byte"),
        ("model.checkpoint.kind", b"\0", "expected zero for the kind Ephemeral"),
        ("model.checkpoint.second.present", b"\0", "model.checkpoint.second.value at byte"),
        ("model.tables.length", b"\x01\x08", "model.tables.length at byte"),
        ("model.tables.length", b"\x01\x00", "model.tables.content at byte"),
        ("model.tables.content", b"\xff", "expected canonical CBOR"),
        ("epoch.ending", b"\7", "epoch.ending at byte"),
        ("epoch.ready", b"\x08", "expected slots of the epoch, which has 3, got 3"),
        ("epoch.clients.count", b"\1\1", "epoch.clients.count at byte"),
        ("epoch.clients[1].state", b"\4", "epoch.clients[1].state at byte"),
        ("epoch.clients[1].id.signer", SIGNER, "epoch.clients[1] at byte"),
        ("epoch.rounds.count", b"\5", "expected at most 4, got 5"),
        ("epoch.rounds[2].height", b"\7", "epoch.rounds[2].height at byte"),
        ("epoch.rounds[1].drain", b"\2", "epoch.rounds[1].drain at byte"),
        ("epoch.rounds[1].slots", b"\xff", "expected slots of the epoch, which has 3, got 7"),
        ("epoch.rounds[1].slots", bytes(31) + b"\x80", "got 255"),
        ("epoch.rounds[3].batches.count", b"\2\2", "expected at most 513, got 514"),
        ("epoch.rounds[3].batches[0].last", bytes(8), "a batch is a closed interval"),
        ("epoch.rounds[3].batches[1].last", b"\xff" * 8, "a batch is a closed interval"),
        ("epoch.rounds[3].batches[1].first", bytes(8), "expected ascending, disjoint intervals"),
        ("epoch.rounds[3].statements[1].index", b"\1", "expected one statement for a slot"),
        ("epoch.rounds[3].statements[1].index", b"\3", "expected one statement for a slot and 3 slots"),
        ("pending[1].signer", identity("pending", 0).signer, "pending[1] at byte"),
        ("requeue[1].first", bytes(8), "requeue[1] at byte"),
        ("accounts[1].signer", bytes(32), "expected signers in ascending order"),
        ("accounts[0].signer", b"\xff" * 32, "accounts[1] at byte"),
        ("from_checkpoint", b"\2", "from_checkpoint at byte"),
        ("model_lost", b"\2", "model_lost at byte"),
        ("config.restart_from_checkpoint", b"\2", "config.restart_from_checkpoint at byte"),
        ("epoch.lacking", b"\x08", "expected slots of the epoch, which has 3, got 3"),
        ("epoch.ready_since.present", b"\0", "epoch.ready_since.value at byte"),
        ("stored.queue.count", b"\x41", "expected at most 64, got 65"),
        ("stored.queue[1].first", bytes(8), "stored.queue[1] at byte"),
        ("ends.count", b"\5", "expected at most 4, got 5"),
        ("ends[0].queue[1].first", bytes(8), "ends[0].queue[1] at byte"),
        ("ends[1].step", bytes(8), "expected ends in ascending order of their steps"),
        ("unready.count", b"\1\1", "expected at most 256, got 257"),
        ("unready[1].signer", key("unready", 0), "unready at byte"),
    ],
)
def test_refusals_are_sentences_that_name_field_and_byte(field: str, value: bytes, sentence: str) -> None:
    image = patched(encode(synthetic(**SMALL)), offset(field), value)
    with pytest.raises(WireError) as caught:
        decode(image)
    assert sentence in str(caught.value)
    assert " at byte " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_byte_of_a_refusal_is_the_field_s() -> None:
    at = offset("epoch.rounds[2].statements[1].index")
    with pytest.raises(WireError, match=rf"^epoch\.rounds\[2\]\.statements\[1\]\.index at byte {at}: "):
        decode(patched(encode(synthetic(**SMALL)), at, b"\xff"))


def test_another_version_is_named_before_its_size() -> None:
    image = encode(synthetic(**SMALL))
    with pytest.raises(WireError, match="version at byte 8: expected 5, got 9"):
        decode(patched(image, 8, b"\x09")[:-100])


# ---------------------------------------------------------------- what encode refuses
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


STATEMENT = synthetic(**SMALL).epoch.rounds[0].statements[0]


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("run_id", "x" * 33, "run_id: expected at most 32 bytes of UTF-8 without NUL, got 33"),
        ("run_id", "a\0", "run_id: expected at most 32 bytes of UTF-8 without NUL"),
        ("run_id", "\udc80", "run_id: expected text that UTF-8 can write"),
        ("run_id", "", "run_id: expected a name"),
        ("run_state", 3, "run_state: expected one of 0 Uninitialized"),
        ("since", -1, "since: expected a whole number from 0 to 18446744073709551615, got -1"),
        ("progress.step", 2**64, "progress.step: expected a whole number"),
        ("progress.epoch", 2**32, "progress.epoch: expected a whole number from 0 to 4294967295"),
        ("pending", tuple(identity(place) for place in range(257)), "pending: expected at most 256, got 257"),
        ("pending", (identity(1), identity(1)), "pending[1]: expected each signer once"),
        ("requeue", intervals(513, 0), "requeue: expected at most 512, got 513"),
        ("requeue", intervals(2, 0)[::-1], "requeue[1]: expected ascending, disjoint intervals"),
        ("accounts", tuple(Account(key(place)) for place in range(513)), "accounts: expected at most 512, got 513"),
        ("accounts", (Account(key(1)), Account(key(1))), "accounts[1]: expected signers in ascending order"),
        ("epoch.clients", tuple(Client(identity(place)) for place in range(257)), "epoch.clients: expected at most 256, got 257"),
        ("config.checkpointers", ("AB" * 32,), "config.checkpointers[0]: expected 64 lower-case hexadecimal digits"),
        ("epoch.clients[2].exited_height", 2**32, "epoch.clients[2].exited_height: expected a whole number"),
        ("epoch.ready", (2, 1), "epoch.ready: expected ascending numbers from 0 to 255"),
        ("epoch.ready", (256,), "epoch.ready: expected ascending numbers from 0 to 255"),
        ("epoch.ready", (1, 3), "epoch.ready: expected slots of the epoch, which has 3, got 3"),
        ("epoch.rounds[0].batches", intervals(514, 0), "epoch.rounds[0].batches: expected at most 513, got 514"),
        ("epoch.rounds[0].statements", (STATEMENT,) * 33, "epoch.rounds[0].statements: expected at most 32, got 33"),
        ("epoch.rounds[0].statements", (STATEMENT,) * 2, "epoch.rounds[0].statements[1].index: expected one statement"),
        ("epoch.rounds[0].statements[1].merkle_root", b"x", "merkle_root: expected 32 bytes"),
        ("epoch.rounds[1].drain", 1, "epoch.rounds[1].drain: expected one of 0 False, 1 True, got 1"),
        ("instance", b"x", "instance: expected 32 bytes"),
        ("generation", 2**32, "generation: expected a whole number"),
        ("epoch.clients[1].missed", 256, "epoch.clients[1].missed: expected a whole number from 0 to 255, got 256"),
        ("epoch.clients[1].lost_rounds", 256, "epoch.clients[1].lost_rounds: expected a whole number from 0 to 255, got 256"),
        ("epoch.clients[1].end_digest", b"", "epoch.clients[1].end_digest: expected 32 bytes"),
        ("epoch.lacking", (1, 3), "epoch.lacking: expected slots of the epoch, which has 3, got 3"),
        ("stored.queue", intervals(65, 0), "stored.queue: expected at most 64, got 65"),
        ("ends", tuple(EpochEnd(step) for step in range(5)), "ends: expected at most 4, got 5"),
        ("ends", (EpochEnd(1), EpochEnd(1)), "ends[1]: expected ends in ascending order of their steps"),
        ("unready", tuple(Unready(key(place), 1) for place in range(257)), "unready: expected at most 256, got 257"),
        ("unready", (Unready(key(1), 1), Unready(key(1), 2)), "unready: expected each signer once"),
        ("model", model(filling=2048), "model.tables: expected at most 2048 bytes of CBOR for architecture, data, optimizer and"),
    ],
)
def test_encode_refuses_what_has_no_image(field: str, value: Any, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        encode(changed(synthetic(**SMALL), field, value))
    assert sentence in str(caught.value)


def test_five_rounds_are_too_many() -> None:
    with pytest.raises(ValueError, match=r"epoch\.rounds: expected at most 4, got 5"):
        encode(synthetic(**{**SMALL, "rounds": 5}))
