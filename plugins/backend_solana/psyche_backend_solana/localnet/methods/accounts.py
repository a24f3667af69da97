"""Methods about accounts."""

from __future__ import annotations

from typing import Any

from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.localnet.methods.call import Call, Handler
from psyche_backend_solana.localnet.rpc.account_filters import read_filters
from psyche_backend_solana.localnet.rpc.encoding import Encoding, encode_account
from psyche_backend_solana.localnet.rpc.parameters import read_pubkey
from psyche_backend_solana.localnet.rpc_error import RpcError

_MAX_ACCOUNT_BYTES = 10 * 1024 * 1024
_SCAN_ERROR = -32012


def get_account_info(call: Call) -> dict[str, Any]:
    """One account, or null."""
    params = call.params(most=2)
    address, options = params.pubkey(0), call.options(params, 1)
    return call.in_context(_encoded(call, call.ledger.account(address), options.encoding()))


def get_multiple_accounts(call: Call) -> dict[str, Any]:
    """Several accounts of one slot; null for those that do not exist."""
    params = call.params(most=2)
    wanted = params.items(0, "addresses", most=call.limits.accounts)
    addresses = [read_pubkey(value, "address") for value in wanted]
    encoding = call.options(params, 1).encoding(default="base64")
    accounts = [call.ledger.account(address) for address in addresses]
    check_size(call, [account for account in accounts if account is not None], encoding)
    return call.in_context([_encoded(call, account, encoding) for account in accounts])


def get_program_accounts(call: Call) -> Any:
    """The accounts a program owns, by address."""
    params = call.params(most=2)
    program, options = params.pubkey(0, "program"), call.options(params, 1)
    matches, encoding = read_filters(options.get("filters")), options.encoding()
    found = [pair for pair in call.ledger.program_accounts(program) if matches(bytes(pair[1].data))]
    result = keyed_accounts(call, found, encoding)
    return call.in_context(result) if options.flag("withContext") else result


def get_balance(call: Call) -> dict[str, Any]:
    """Return an account's balance in lamports."""
    params = call.params(most=2)
    address = params.pubkey(0)
    call.options(params, 1)
    return call.in_context(call.ledger.balance(address))


def get_minimum_balance_for_rent_exemption(call: Call) -> int:
    """Return the lamports that an account of the given size needs."""
    params = call.params(most=2)
    size = params.integer(0, "size in bytes", high=_MAX_ACCOUNT_BYTES)
    call.options(params, 1)
    return call.ledger.rent_exempt(size)


def keyed_accounts(call: Call, found: list[tuple[Pubkey, Account]], encoding: Encoding) -> list[dict[str, Any]]:
    """Accounts with their addresses. Raises RpcError if there are too many, or they are too large together."""
    if len(found) > call.limits.program_accounts:
        message = f"{len(found)} accounts match, this chain gives at most {call.limits.program_accounts}; add filters"
        raise RpcError(_SCAN_ERROR, message)

    check_size(call, [account for _, account in found], encoding)
    return [{"pubkey": str(address), "account": _encoded(call, account, encoding)} for address, account in found]


def check_size(call: Call, accounts: list[Account], encoding: Encoding) -> None:
    """Check the size of an answer. Raises RpcError if it is too large."""
    total = sum(len(encoding.slice(bytes(account.data))) for account in accounts)
    if total > call.limits.answer_bytes:
        message = f"the accounts hold {total} bytes, this chain gives at most {call.limits.answer_bytes}; use a dataSlice"
        raise RpcError(_SCAN_ERROR, message)


def _encoded(call: Call, account: Account | None, encoding: Encoding) -> dict[str, Any] | None:
    return None if account is None else encode_account(account, encoding, decimals=call.ledger.decimals)


METHODS: dict[str, Handler] = {
    "getAccountInfo": get_account_info,
    "getMultipleAccounts": get_multiple_accounts,
    "getProgramAccounts": get_program_accounts,
    "getBalance": get_balance,
    "getMinimumBalanceForRentExemption": get_minimum_balance_for_rent_exemption,
}
