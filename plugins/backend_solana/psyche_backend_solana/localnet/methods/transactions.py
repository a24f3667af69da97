"""Methods that send transactions, and those that return their status and content."""

from __future__ import annotations

from typing import Any

from solders.message import from_bytes_versioned
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from psyche_backend_solana.localnet.ledger.fees import message_fee
from psyche_backend_solana.localnet.ledger.ledger import Refused, Simulated
from psyche_backend_solana.localnet.ledger.records import TransactionRecord
from psyche_backend_solana.localnet.ledger.transaction_errors import error_sentence
from psyche_backend_solana.localnet.ledger.transactions import decode_bytes, decode_transaction
from psyche_backend_solana.localnet.methods.call import Call, Handler
from psyche_backend_solana.localnet.rpc.encoding import encode_account
from psyche_backend_solana.localnet.rpc.parameters import Options, read_base58, read_pubkey, shown
from psyche_backend_solana.localnet.rpc.transaction_json import ENCODINGS, transaction_json
from psyche_backend_solana.localnet.rpc_error import PREFLIGHT_FAILURE, SIGNATURE_FAILURE, RpcError, invalid

_MAX_STATUSES = 256
_MAX_SIGNATURES = 1000
_WIRE = ("base58", "base64")


def send_transaction(call: Call) -> str:
    """Process a transaction, after a simulation unless skipPreflight is set; return its signature."""
    params = call.params(most=2)
    options = call.options(params, 1)
    transaction = _transaction(params.text(0, "transaction"), options)
    within = call.faults.now.expire_blockhashes_after
    if not options.flag("skipPreflight"):
        tried = call.ledger.simulate(transaction, verify=True, within=within)
        if tried.err == "SignatureFailure":
            raise RpcError(SIGNATURE_FAILURE, "Transaction signature verification failure")

        if tried.err is not None:
            message = f"Transaction simulation failed: {error_sentence(tried.err)}"
            raise RpcError(PREFLIGHT_FAILURE, message, _simulation_json(tried))

    if not call.faults.draw(call.faults.now.swallow_share):
        call.ledger.send(transaction, within=within)
    return str(transaction.signatures[0])


def simulate_transaction(call: Call) -> dict[str, Any]:
    """The effects of a transaction, without executing it."""
    params = call.params(most=2)
    options = call.options(params, 1)
    transaction = _transaction(params.text(0, "transaction"), options)
    verify, replace = options.flag("sigVerify"), options.flag("replaceRecentBlockhash")
    if verify and replace:
        message = "sigVerify may not be used with replaceRecentBlockhash"
        raise invalid(message)

    wanted = _wanted_accounts(options, transaction)
    within = call.faults.now.expire_blockhashes_after
    result = call.ledger.simulate(transaction, verify=verify, check_blockhash=not replace, within=within)
    if result.err == "SignatureFailure":
        raise RpcError(SIGNATURE_FAILURE, "Transaction signature verification failure")

    value = _simulation_json(result)
    if wanted is not None:
        encoding, addresses = wanted
        accounts = [result.accounts.get(at) or call.ledger.account(at) for at in addresses] if result.err is None else []
        value["accounts"] = [
            None if account is None or account.lamports == 0 else encode_account(account, encoding, decimals=call.ledger.decimals)
            for account in accounts or [None] * len(addresses)
        ]
    if options.flag("innerInstructions"):
        value["innerInstructions"] = result.inner
    if replace:
        last = call.ledger.slot + within
        value["replacementBlockhash"] = {"blockhash": call.ledger.blockhashes.latest, "lastValidBlockHeight": last}
    return call.in_context(value)


def request_airdrop(call: Call) -> str:
    """Give free lamports to an address; return the transaction's signature."""
    params = call.params(most=3)
    address = params.pubkey(0)
    lamports = params.integer(1, "lamports", high=call.limits.airdrop)
    params.options(2)
    given = call.ledger.airdrop(address, lamports)
    if isinstance(given, Refused) or given.err is not None:
        message = f"airdrop request failed: {error_sentence(given.err)}"
        raise RpcError(-32603, message)

    return given.signature


def get_fee_for_message(call: Call) -> dict[str, Any]:
    """Return a message's fee in lamports, or null if its blockhash is not valid."""
    params = call.params(most=2)
    data = decode_bytes(params.text(0, "message"), "base64", kind="message")
    call.options(params, 1)
    try:
        message = from_bytes_versioned(data)
        fee = message_fee(message)
    except Exception as error:  # solders has one exception per cause; an index may be out of range
        sentence = f"failed to deserialize a message of {len(data)} bytes: {error}"
        raise invalid(sentence) from error

    good = call.ledger.blockhashes.is_valid(str(message.recent_blockhash), within=call.faults.now.expire_blockhashes_after)
    return call.in_context(fee if good else None)


def get_signature_statuses(call: Call) -> dict[str, Any]:
    """The status of transactions; null for unknown ones."""
    params = call.params(most=2)
    wanted = params.items(0, "signatures", most=_MAX_STATUSES)
    signatures = [read_base58(value, 64, "signature") for value in wanted]
    params.options(1)
    records = [call.ledger.history.record(signature) for signature in signatures]
    return call.in_context([None if record is None else _status_json(record) for record in records])


def get_transaction(call: Call) -> dict[str, Any] | None:
    """A processed transaction, or null."""
    params = call.params(most=2)
    record = call.ledger.history.record(params.signature(0))
    given = params.get(1)
    options = Options({"encoding": given} if isinstance(given, str) else given)
    encoding = options.choice("encoding", ENCODINGS, default="json")
    version = options.integer("maxSupportedTransactionVersion", high=255)
    if record is None:
        return None

    return {
        **transaction_json(record, encoding, max_version=version),
        "slot": record.slot,
        "blockTime": record.unix,
    }


def get_signatures_for_address(call: Call) -> list[dict[str, Any]]:
    """Transactions that name an account, newest first."""
    params = call.params(most=2)
    address, options = str(params.pubkey(0)), call.options(params, 1)
    limit = options.integer("limit", low=1, high=_MAX_SIGNATURES) or _MAX_SIGNATURES
    before, until = (
        None if options.get(name) is None else read_base58(options.get(name), 64, name) for name in ("before", "until")
    )
    found: list[dict[str, Any]] = []
    begun = before is None
    for record in call.ledger.history.newest_first():
        if record.signature == until or len(found) >= limit:
            break

        if begun and address in record.accounts:
            status = {"signature": record.signature, "slot": record.slot, "err": record.err, "memo": None}
            found.append({**status, "blockTime": record.unix, "confirmationStatus": "finalized"})
        begun = begun or record.signature == before
    return found


def _transaction(text: str, options: Options) -> VersionedTransaction:
    encoding = options.choice("encoding", _WIRE, default="base58")
    return decode_transaction(decode_bytes(text, encoding, kind="solana_transaction::versioned::VersionedTransaction"))


def _wanted_accounts(options: Options, transaction: VersionedTransaction) -> tuple[Any, list[Pubkey]] | None:
    value = options.get("accounts")
    if value is None:
        return None

    match value:
        case {"addresses": list() as addresses}:
            if len(addresses) > len(transaction.message.account_keys) + 256:
                message = "Too many accounts provided; max 256 and those the transaction names"
                raise invalid(message)

            encoding = Options(value).encoding(default="base64")
            return encoding, [read_pubkey(address, "address") for address in addresses]
    message = f"accounts is an object with a list of addresses, got {shown(value)}"
    raise invalid(message)


def _simulation_json(result: Simulated) -> dict[str, Any]:
    return {
        "accounts": None,
        "err": result.err,
        "fee": result.fee,
        "innerInstructions": None,
        "loadedAccountsDataSize": None,
        "logs": result.logs,
        "replacementBlockhash": None,
        "returnData": result.return_data,
        "unitsConsumed": result.units,
    }


def _status_json(record: TransactionRecord) -> dict[str, Any]:
    return {
        "slot": record.slot,
        "confirmations": None,
        "err": record.err,
        "status": {"Ok": None} if record.err is None else {"Err": record.err},
        "confirmationStatus": "finalized",
    }


METHODS: dict[str, Handler] = {
    "sendTransaction": send_transaction,
    "simulateTransaction": simulate_transaction,
    "requestAirdrop": request_airdrop,
    "getFeeForMessage": get_fee_for_message,
    "getSignatureStatuses": get_signature_statuses,
    "getTransaction": get_transaction,
    "getSignaturesForAddress": get_signatures_for_address,
}
