"""A coordinator state from a server: read wholly and strictly, or refused with a sentence."""

from __future__ import annotations

from psyche_core.config.run_config import parse_run_file
from psyche_core.coordinator.serialization import from_plain, to_plain
from psyche_core.coordinator.state import (
    Account,
    Client,
    CoordinatorState,
    EndReason,
    Epoch,
    EpochRates,
    OpenChallenge,
    Progress,
    Root,
    Round,
)
from psyche_core.errors import WireError
from psyche_core.types import BatchId, ClientState, NodeIdentity, RunState, WitnessStatement, bitmap
from psyche_core.verification.challenge import Stage
from psyche_core.verification.standing import Standing
from psyche_core.wire.codec import decode, encode
from tests.fuzz.mutation import change_cbor as mutate
from tests.fuzz.targets.run_file import LOCAL_TESTNET

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "rich_state", "seeds"]

DOCUMENTED = (WireError,)
MAX_BYTES = 6000
MEMORY = (700, 262_144)


def rich_state() -> CoordinatorState:
    """A state in which every table has an entry."""
    members = [NodeIdentity(bytes([n]) * 32, bytes([n + 100]) * 32) for n in range(4)]
    run_file = parse_run_file(LOCAL_TESTNET, source="state.toml")
    statement = WitnessStatement(3, 8, 1, bitmap([0, 1]), bytes(320), b"m" * 32, b"d" * 32)
    return CoordinatorState(
        run_file.run_id,
        run_file.config,
        run_file.model,
        run_state=RunState.RoundWitness,
        progress=Progress(epoch=3, step=40, data_index=960),
        epoch=Epoch(
            clients=tuple(
                Client(member, state, standing=Standing(1, 18, (True, False)))
                for member, state in zip(members, ClientState, strict=True)
            ),
            rounds=(
                Round(7, 38, 1, (0, 1, 2), (BatchId(0, 7), BatchId(912, 927))),
                Round(8, 39, 2**64 - 1, (0, 1), (BatchId(928, 951),), (statement,), recomputing=(1,)),
            ),
            challenges=(
                OpenChallenge(
                    height=5,
                    trainer=2,
                    verifier=0,
                    since=7,
                    share=(BatchId(96, 103),),
                    stage=Stage.TIE_COMMIT,
                    roots=(Root(0, b"r" * 32),),
                    judges=(1, 3),
                ),
                OpenChallenge(height=6, trainer=0, verifier=1, since=8, share=(BatchId(600, 607),), complained=True),
            ),
            start_step=31,
            start_time=1_700_000_000,
            ending=EndReason(1),
            ready=(0, 1),
            seed=5,
            rates=EpochRates(),
        ),
        since=1_700_000_100,
        pending=(members[0], members[3]),
        minimum_since=1_700_000_050,
        requeue=(BatchId(16, 23), BatchId(40, 40)),
        lost_samples=3,
        accounts=(Account(members[0].signer, 10, 0),),
    )


def seeds() -> list[bytes]:
    return [encode(to_plain(rich_state()))]


def TARGET(data: bytes) -> None:
    state = from_plain(decode(data, max_bytes=MAX_BYTES))
    assert from_plain(decode(encode(to_plain(state)), max_bytes=2 * MAX_BYTES)) == state
