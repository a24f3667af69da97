"""Commands as plain lists: what is written is read back, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.config.run_config import Choice
from psyche_core.coordinator.commands import (
    Checkpoint,
    Equivocation,
    HealthCheck,
    SignedResult,
    VerifierCommit,
    WarmupWitness,
    Withdraw,
    Witness,
)
from psyche_core.errors import WireError
from psyche_core.interfaces.backend import ClientCommand
from psyche_core.interfaces.command_codec import decode_command, encode_command
from psyche_core.types import (
    MAX_SCORE_NAME_BYTES,
    MAX_SCORES,
    EvaluationScore,
    NodeIdentity,
    WitnessMetadata,
    WitnessStatement,
)
from psyche_core.wire.codec import decode, encode

SENDER = NodeIdentity(b"s" * 32, b"p" * 32)
U32 = st.integers(0, 2**32 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(min_size=1, max_size=MAX_SCORE_NAME_BYTES).filter(lambda name: len(name.encode()) <= MAX_SCORE_NAME_BYTES)
SCORES = st.builds(EvaluationScore, NAMES, NAMES, FINITE, U32, U32)
COMMANDS: st.SearchStrategy[ClientCommand] = st.one_of(
    st.just(Withdraw(SENDER)),
    st.builds(WarmupWitness, st.just(SENDER), U32, U32, st.binary(min_size=32, max_size=32)),
    st.builds(
        Witness,
        st.just(SENDER),
        st.builds(
            WitnessStatement,
            U32,
            U32,
            U32,
            st.binary(min_size=32, max_size=32),
            st.binary(min_size=320, max_size=320),
            st.binary(min_size=32, max_size=32),
            st.binary(min_size=32, max_size=32),
            st.binary(max_size=192),
        ),
        st.none() | st.builds(WitnessMetadata, U32, FINITE, FINITE, FINITE, st.lists(SCORES, max_size=MAX_SCORES).map(tuple)),
    ),
    st.builds(
        Equivocation,
        st.just(SENDER),
        U32,
        U32,
        U32,
        *[st.builds(SignedResult, st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64))] * 2,
    ),
    st.builds(
        VerifierCommit,
        st.just(SENDER),
        U32,
        st.integers(0, 2**64 - 1),
        U32,
        U32,
        st.none() | st.binary(min_size=32, max_size=32),
    ),
    st.builds(HealthCheck, st.just(SENDER), st.lists(st.integers(0, 255), max_size=256).map(tuple)),
    st.builds(
        Checkpoint,
        st.just(SENDER),
        st.sampled_from(
            [Choice("Hub", {"repo_id": "a/b"}), Choice("P2P", {"repo_id": "a/b", "revision": "1"}), Choice("Ephemeral"), None]
        ),
        st.none() | U32,
    ),
)


@settings(deadline=None)
@given(COMMANDS)
def test_commands_are_read_back_with_the_authenticated_sender(command: ClientCommand) -> None:
    plain = decode(encode(encode_command(command)), max_bytes=10_000)
    assert decode_command(plain, SENDER) == command
    assert SENDER.signer not in encode(plain)


@settings(deadline=None)
@given(COMMANDS, st.data())
def test_a_command_with_one_field_of_another_kind_is_refused(command: ClientCommand, data: st.DataObject) -> None:
    plain: list[Any] = encode_command(command)
    if len(plain) == 1:
        return
    place = data.draw(st.integers(1, len(plain) - 1))
    if isinstance(command, VerifierCommit) and place in (2, 5):  # a seed may be larger, a complaint is None
        plain[place] = data.draw(st.sampled_from([True, -1, 2**64, "", b"", 0.5, [True]]))
    elif isinstance(command, Checkpoint):
        plain[place] = data.draw(st.sampled_from([True, -1, 0.5, b"", [True], {"Hub": 7}]))
    elif isinstance(command, Witness) and place == 2:
        plain[place] = [1, 2, 3, 4]
    else:
        plain[place] = data.draw(st.sampled_from([True, -1, 2**32, "", b"", 0.5, None, [True], [b""], [256]]))
    with pytest.raises(WireError):
        decode_command(plain, SENDER)


@pytest.mark.parametrize(
    "plain", [[], [0], [1, 1], [6], [2, 0, 0, b"short"], [3, [0] * 7, None], [4, [0] * 257], [4, [256]], [5, 7], ["1"]]
)
def test_other_lists_are_no_commands(plain: list[Any]) -> None:
    with pytest.raises(WireError):
        decode_command(plain, SENDER)


def test_a_statement_without_words_has_the_bytes_that_it_had_before() -> None:
    statement = WitnessStatement(1, 2, 3, bytes(32), bytes(320), bytes(32), bytes(32))
    plain = encode_command(Witness(SENDER, statement))
    assert len(plain[1]) == 7
    for words in ([b""], [b"x" * 193], [7], [b"x", b"y"]):
        with pytest.raises(WireError, match="words about challenges"):
            decode_command([3, [*plain[1], *words], None], SENDER)


SCORE = ["arc_easy", "acc_norm", 0.5, 100, 7]


@pytest.mark.parametrize(
    "scores",
    [
        [],
        {},
        "arc_easy",
        [SCORE] * (MAX_SCORES + 1),
        [SCORE[:4]],
        [["", *SCORE[1:]]],
        [["x" * (MAX_SCORE_NAME_BYTES + 1), *SCORE[1:]]],
        [[*SCORE[:2], float("nan"), *SCORE[3:]]],
        [[*SCORE[:2], 1, *SCORE[3:]]],
        [[*SCORE[:3], -1, 7]],
        [[*SCORE[:4], 2**32]],
        [[*SCORE[:4], True]],
    ],
)
def test_scores_that_no_witness_sends_are_refused(scores: Any) -> None:
    statement = WitnessStatement(0, 1, 2, bytes(32), bytes(320), bytes(32), bytes(32))
    plain = encode_command(Witness(SENDER, statement, WitnessMetadata(1, 2.0, 3.0, 4.0)))
    good = [*plain[:2], [*plain[2], [SCORE]]]
    decoded = decode_command(good, SENDER)
    assert isinstance(decoded, Witness)
    assert decoded.metadata is not None
    assert decoded.metadata.scores == (EvaluationScore("arc_easy", "acc_norm", 0.5, 100, 7),)
    assert encode_command(decoded) == good
    for wrong in ([*plain[2], scores], [*plain[2], [SCORE], 0]):
        with pytest.raises(WireError, match=r"score|figures"):
            decode_command([*plain[:2], wrong], SENDER)


def test_figures_without_scores_have_the_bytes_that_they_had_before() -> None:
    statement = WitnessStatement(0, 1, 2, bytes(32), bytes(320), bytes(32), bytes(32))
    assert encode_command(Witness(SENDER, statement, WitnessMetadata(1, 2.0, 3.0, 4.0)))[2] == [1, 2.0, 3.0, 4.0]
