"""Methods about the cluster: one healthy node that leads every slot, no stake, no inflation."""

from __future__ import annotations

from typing import Any

from psyche_backend_solana.localnet.ledger.genesis import SLOTS_PER_EPOCH
from psyche_backend_solana.localnet.methods.call import API_VERSION, Call, Handler
from psyche_backend_solana.localnet.rpc_error import invalid

_FEATURE_SET = 0
_MAX_LEADERS = 5000
_MAX_SAMPLES = 720


def get_health(call: Call) -> str:
    """Always healthy; an unhealthy node is simulated by a fault of its RPC provider."""
    call.params(most=0)
    return "ok"


def get_version(call: Call) -> dict[str, Any]:
    """The release of Solana whose rules the virtual machine follows."""
    call.params(most=0)
    return {"solana-core": API_VERSION, "feature-set": _FEATURE_SET}


def get_genesis_hash(call: Call) -> str:
    """The genesis hash, which differs between chains; a chain gets a new one after --reset."""
    call.params(most=0)
    return call.ledger.genesis_hash


def get_identity(call: Call) -> dict[str, Any]:
    """The node's key."""
    call.params(most=0)
    return {"identity": str(call.ledger.identity)}


def get_cluster_nodes(call: Call) -> list[dict[str, Any]]:
    """This node, once for each of its RPC providers."""
    call.params(most=0)
    node = {"pubkey": str(call.ledger.identity), "version": API_VERSION, "featureSet": _FEATURE_SET, "shredVersion": 1}
    silent = {"gossip": None, "tpu": None, "tpuQuic": None}
    return [{**node, **silent, "rpc": rpc, "pubsub": pubsub} for rpc, pubsub in call.providers]


def get_epoch_info(call: Call) -> dict[str, Any]:
    """The chain's position in its epoch."""
    call.options(call.params(most=1), 0)
    ledger = call.ledger
    return {
        "absoluteSlot": ledger.slot,
        "blockHeight": ledger.slot,
        "epoch": ledger.epoch,
        "slotIndex": ledger.slot % SLOTS_PER_EPOCH,
        "slotsInEpoch": SLOTS_PER_EPOCH,
        "transactionCount": ledger.transaction_count,
    }


def get_epoch_schedule(call: Call) -> dict[str, Any]:
    """The schedule of epochs, which all have the same length."""
    call.params(most=0)
    schedule = {"slotsPerEpoch": SLOTS_PER_EPOCH, "leaderScheduleSlotOffset": SLOTS_PER_EPOCH, "warmup": False}
    return {**schedule, "firstNormalEpoch": 0, "firstNormalSlot": 0}


def get_slot_leader(call: Call) -> str:
    """Return this node's key: it leads every slot."""
    call.options(call.params(most=1), 0)
    return str(call.ledger.identity)


def get_slot_leaders(call: Call) -> list[str]:
    """Return this node's key, repeated as often as requested."""
    params = call.params(most=2)
    params.integer(0, "start slot")
    return [str(call.ledger.identity)] * params.integer(1, "limit", low=1, high=_MAX_LEADERS)


def get_vote_accounts(call: Call) -> dict[str, Any]:
    """Always empty: no node votes."""
    call.params(most=1).options(0)
    return {"current": [], "delinquent": []}


def get_recent_performance_samples(call: Call) -> list[Any]:
    """Always empty: no samples are taken."""
    params = call.params(most=1)
    if params.get(0) is not None:
        params.integer(0, "limit", high=_MAX_SAMPLES)
    return []


def get_recent_prioritization_fees(call: Call) -> list[dict[str, int]]:
    """Zero for the newest slots: no fee is required."""
    params = call.params(most=1)
    if params.get(0) is not None:
        for address in params.items(0, "addresses", most=128):
            if not isinstance(address, str):
                message = "addresses are base58 texts"
                raise invalid(message)
    slot = call.ledger.slot
    return [{"slot": at, "prioritizationFee": 0} for at in range(max(slot - 149, 1), slot + 1)]


METHODS: dict[str, Handler] = {
    "getHealth": get_health,
    "getVersion": get_version,
    "getGenesisHash": get_genesis_hash,
    "getIdentity": get_identity,
    "getClusterNodes": get_cluster_nodes,
    "getEpochInfo": get_epoch_info,
    "getEpochSchedule": get_epoch_schedule,
    "getSlotLeader": get_slot_leader,
    "getSlotLeaders": get_slot_leaders,
    "getVoteAccounts": get_vote_accounts,
    "getRecentPerformanceSamples": get_recent_performance_samples,
    "getRecentPrioritizationFees": get_recent_prioritization_fees,
}
