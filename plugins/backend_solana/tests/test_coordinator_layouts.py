"""Instructions and accounts of the coordinator as bytes: at the places the reference page gives, nothing that does not fit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.svm import refusals, runs
from plugins.backend_solana.tests.svm.coordinator_svm import PROGRAM_FILE, CoordinatorSvm, member, proved
from psyche_backend_solana.layouts import coordinator as layout
from psyche_backend_solana.layouts import errors
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES, HEADER_BYTES, CoordinatorAccount, RunMetadata
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.canonical_image.layout import CONFIG
from psyche_core.coordinator.errors import NAMES
from psyche_core.coordinator.state import Progress
from psyche_core.types import RunState

PLUGIN = PROGRAM_FILE.parent.parent.parent
KEY = Pubkey(bytes(range(32)))
RUN = layout.Run(Pubkey(b"i" * 32), Pubkey(b"c" * 32))


def source(name: str) -> str:
    return (PLUGIN / "programs" / name).read_text()


def test_names_of_common_refusals_are_the_programs() -> None:
    found = re.findall(r"pub const ([A-Z_]+): Error = Error\((\d+)\);", source("common/src/error.rs"))
    expected = {int(number): "".join(word.capitalize() for word in name.split("_")) for name, number in found}
    assert dict(errors.COMMON) == expected


def test_the_coordinators_refusals_are_the_programs() -> None:
    found = dict(re.findall(r"pub const ([A-Z_]+): Refusal = own\((\d+)\);", source("coordinator/src/refusal.rs")))
    for name, place in found.items():
        known = NAMES[int(place)].replace("CheckFailed", "")
        assert re.sub(r"(?<!^)(?=[A-Z])", "_", known).upper() == name
    unused = {"InvalidCommitteeSelection"}
    assert {NAMES[place] for place in set(range(len(NAMES))) - {int(place) for place in found.values()}} == unused


@pytest.mark.parametrize(("code", "name"), [(1, "BadInstruction"), (100, "NoActiveRound"), (121, "ProgressSanityCheckFailed")])
def test_a_refusal_has_a_name(code: int, name: str) -> None:
    assert refusals.coordinator_refusal(code) == name
    assert refusals.COORDINATOR_CODES[name] == code


def test_an_unknown_refusal_is_its_number() -> None:
    assert refusals.coordinator_refusal(99) == "Custom(99)"


def test_the_programs_address_is_compiled_in() -> None:
    assert str(layout.PROGRAM_ID) in source("common/src/ids.rs")


def test_an_update_is_the_parts_in_order() -> None:
    config = runs.config(Random(3), 5)
    wanted = layout.Update(config=config, progress=Progress(3, 5, 7), metadata=RunMetadata("n"), client_version="v")
    data = bytes(layout.update(RUN, wanted, authority=KEY).data)
    assert data[:2] == bytes([3, 1 | 4 | 8 | 16])
    assert data[2:594] == CONFIG.write(config)
    assert data[594:614] == b"\5" + bytes(7) + b"\7" + bytes(7) + b"\3" + bytes(3)
    assert data[614:615] == b"n"
    assert data[974:] == b"v".ljust(96, b"\0")


@given(chunk=st.integers(1, 4096), seed=st.integers(0, 50))
def test_staged_pieces_are_the_parts(chunk: int, seed: int) -> None:
    random = Random(seed)
    wanted = layout.Update(config=runs.config(random, 5), model=runs.model(random), metadata=RunMetadata("n", "d"))
    mask, parts = wanted.pack()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "STAGE_CHUNK_BYTES", chunk)
        *pieces, last = layout.staged_update(RUN, wanted, authority=KEY)
    if not pieces:
        assert bytes(last.data) == bytes([3, mask]) + parts
        return
    assert bytes(last.data) == bytes([3, mask | 128])
    staged = bytearray(4096)
    for piece in pieces:
        data = bytes(piece.data)
        assert data[0] == 2
        assert len(data) - 3 <= chunk
        offset = int.from_bytes(data[1:3], "little")
        staged[offset : offset + len(data) - 3] = data[3:]
    assert bytes(staged[: len(parts)]) == parts


def test_everything_an_update_can_bring_fits_staging() -> None:
    """And a piece fits a packet of 1232 bytes, beside the accounts of a treasurer's run."""
    urls = {"WeightedHttp": {"urls": ["https://example.org/" + "y" * 60] * 21}}
    model = runs.model(Random(0), data_location=urls)
    wanted = layout.Update(
        config=runs.config(Random(0), 5), model=model, progress=Progress(), metadata=RunMetadata(), client_version=""
    )
    _, parts = wanted.pack()
    assert 2500 < len(parts) <= 4096
    assert layout.STAGE_CHUNK_BYTES + 3 + 64 + 1 + 3 + 1 + 7 * 32 + 32 + 1 + 20 <= 1232


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: layout.stage(RUN, authority=KEY, offset=-1, content=b""),
        lambda: layout.instance_address(""),
        lambda: layout.instance_address("x" * 33),
        lambda: layout.instance_address("a\0"),
        lambda: layout.update(RUN, layout.Update(client_version="v" * 97), authority=KEY),
        lambda: layout.update(RUN, layout.Update(metadata=RunMetadata("n" * 65)), authority=KEY),
        lambda: layout.update(RUN, layout.Update(metadata=RunMetadata(num_parameters=2**64)), authority=KEY),
        lambda: layout.update(RUN, layout.Update(progress=Progress(step=-1)), authority=KEY),
        lambda: layout.set_future_epoch_rates(RUN, authority=KEY, earning_total_shared=2**64),
        lambda: layout.join(RUN, user=KEY, authorization=KEY, p2p=b"short", proof=bytes(64)),
        lambda: layout.join(RUN, user=KEY, authorization=KEY, p2p=bytes(32), proof=bytes(63)),
        lambda: layout.epoch_digest(RUN, user=KEY, epoch=0, index=0, digest=bytes(31)),
        lambda: layout.join(RUN, user=KEY, authorization=KEY, p2p=bytes(32), proof=bytes(64), address=bytes(513)),
        lambda: layout.warmup_witness(RUN, user=KEY, epoch=0, index=2**16, model_digest=bytes(32)),
        lambda: layout.warmup_witness(RUN, user=KEY, epoch=0, index=0, model_digest=bytes(31)),
        lambda: layout.health_check(RUN, user=KEY, slots=(70000,)),
        lambda: layout.checkpoint(RUN, "Ephemeral", user=KEY),
        lambda: layout.checkpoint(RUN, "Nowhere", user=KEY),
        lambda: layout.checkpoint(RUN, {"Hub": {}}, user=KEY),
        lambda: layout.checkpoint(RUN, {"Hub": {"repo_id": "x" * 65}}, user=KEY),
        lambda: layout.commitments_verified(RUN, p2p=bytes(32), signed=((bytes(32), bytes(63)),)),
    ],
)
def test_what_does_not_fit_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r".{20}"):
        wrong()


def test_an_account_is_read_as_it_was_written() -> None:
    chain = CoordinatorSvm(members=2)
    empty = chain.account
    assert empty.state is None
    state = replace(chain.fresh(runs.config(Random(1), 2), runs.model(Random(1))), run_state=RunState.WaitingForMembers)
    chain.begin(state)
    found = CoordinatorAccount.parse(chain.data())
    assert (found.state, found.instance, found.client_version, found.nonce) == (state, chain.run.instance, "1", 1)
    assert (len(chain.data()), HEADER_BYTES + image.SIZE) == (ACCOUNT_BYTES, 255_120)
    assert chain.do(proved(0, chain.instance), state).refusal is None
    assert chain.account.state is not None
    assert chain.account.state.pending == (member(0),)


def test_offsets_are_the_pages() -> None:
    """The page gives the account's fields by offset; the program's structure is checked when it is compiled."""
    page = Path(__file__).parents[3] / "docs" / "reference" / "solana-programs.md"
    text = page.read_text()
    for line in ("| 544 | working memory 752", "| 1296 | beacon", "| 1344 | canonical image", "| 255120 | staging 4096"):
        assert line in text
    for number in layout.Number:
        assert f"| {int(number)} | {number.name} |" in text
