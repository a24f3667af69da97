"""The cost of a message: 5,000 lamports per signature (including those of precompiles), and the price of its compute units."""

from __future__ import annotations

from psyche_backend_solana.localnet.ledger.transactions import AnyMessage

LAMPORTS_PER_SIGNATURE = 5000
_UNITS_PER_INSTRUCTION = 200_000
_UNITS_PER_BUILTIN = 3_000
_MAX_UNITS = 1_400_000
_COMPUTE_BUDGET = "ComputeBudget111111111111111111111111111111"
_PRECOMPILES = frozenset(
    {
        "Ed25519SigVerify111111111111111111111111111",
        "KeccakSecp256k11111111111111111111111111111",
        "Secp256r1SigVerify1111111111111111111111111",
    }
)
_BUILTINS = _PRECOMPILES | {
    _COMPUTE_BUDGET,
    "11111111111111111111111111111111",
    "Vote111111111111111111111111111111111111111",
    "BPFLoader1111111111111111111111111111111111",
    "BPFLoader2111111111111111111111111111111111",
    "BPFLoaderUpgradeab1e11111111111111111111111",
    "LoaderV411111111111111111111111111111111111",
}


def message_fee(message: AnyMessage) -> int:
    """Return the fee of a message in lamports."""
    signatures = message.header.num_required_signatures
    price, limit, default = 0, None, 0
    for instruction in message.instructions:
        program, data = str(message.account_keys[instruction.program_id_index]), bytes(instruction.data)
        if program in _PRECOMPILES:
            signatures += data[0] if data else 0
        default += _UNITS_PER_BUILTIN if program in _BUILTINS else _UNITS_PER_INSTRUCTION
        if program != _COMPUTE_BUDGET:
            continue

        if data[:1] == b"\2" and len(data) == 5:
            limit = int.from_bytes(data[1:], "little")
        elif data[:1] == b"\3" and len(data) == 9:
            price = int.from_bytes(data[1:], "little")
    units = min(default if limit is None else limit, _MAX_UNITS)
    return signatures * LAMPORTS_PER_SIGNATURE + -(-price * units // 1_000_000)
