"""Methods about SPL tokens."""

from __future__ import annotations

from typing import Any

from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.localnet.ledger.tokens import (
    PROGRAM_NAMES,
    Mint,
    TokenAccount,
    amount_json,
    read_mint,
    read_token_account,
)
from psyche_backend_solana.localnet.methods.accounts import keyed_accounts
from psyche_backend_solana.localnet.methods.call import Call, Handler
from psyche_backend_solana.localnet.rpc.parameters import read_pubkey, shown
from psyche_backend_solana.localnet.rpc_error import invalid

_LARGEST = 20


def get_token_account_balance(call: Call) -> dict[str, Any]:
    """The balance of a token account."""
    params = call.params(most=2)
    address = params.pubkey(0)
    call.options(params, 1)
    account = call.ledger.account(address)
    held = None if account is None else _token_account(account)
    decimals = None if held is None else call.ledger.decimals(held.mint)
    if held is None or decimals is None:
        message = "could not find account" if account is None else "not a Token account"
        raise invalid(message)

    return call.in_context(amount_json(held.amount, decimals))


def get_token_supply(call: Call) -> dict[str, Any]:
    """The supply of a mint."""
    params = call.params(most=2)
    address = params.pubkey(0, "mint")
    call.options(params, 1)
    mint = _mint(call, address)
    return call.in_context(amount_json(mint.supply, mint.decimals))


def get_token_accounts_by_owner(call: Call) -> dict[str, Any]:
    """Token accounts of an owner, for one mint or one token program."""
    return _accounts_by(call, "owner")


def get_token_accounts_by_delegate(call: Call) -> dict[str, Any]:
    """Token accounts whose tokens a delegate may move."""
    return _accounts_by(call, "delegate")


def get_token_largest_accounts(call: Call) -> dict[str, Any]:
    """The 20 accounts that hold most of a mint."""
    params = call.params(most=2)
    address = params.pubkey(0, "mint")
    call.options(params, 1)
    mint = _mint(call, address)
    held = [(at, token) for at, _, token in _token_accounts(call, tuple(PROGRAM_NAMES)) if token.mint == str(address)]
    largest = sorted(held, key=lambda pair: (-pair[1].amount, str(pair[0])))[:_LARGEST]
    return call.in_context([{"address": str(at), **amount_json(token.amount, mint.decimals)} for at, token in largest])


def _accounts_by(call: Call, field: str) -> dict[str, Any]:
    params = call.params(most=3)
    who = str(params.pubkey(0, field))
    which = params.required(1, "filter")
    encoding = call.options(params, 2).encoding()
    programs, wanted = tuple(PROGRAM_NAMES), None
    match which:
        case {"mint": mint}:
            wanted = str(read_pubkey(mint, "mint"))
            _mint(call, Pubkey.from_string(wanted))
        case {"programId": program}:
            programs = (str(read_pubkey(program, "programId")),)
            if programs[0] not in PROGRAM_NAMES:
                message = "unrecognized Token program id"
                raise invalid(message)
        case _:
            message = f"the filter is an object with mint or programId, got {shown(which)}"
            raise invalid(message)

    found = [
        (at, account)
        for at, account, token in _token_accounts(call, programs)
        if getattr(token, field) == who and wanted in (None, token.mint)
    ]
    return call.in_context(keyed_accounts(call, found, encoding))


def _token_accounts(call: Call, programs: tuple[str, ...]) -> list[tuple[Pubkey, Account, TokenAccount]]:
    found = []
    for program in programs:
        for address, account in call.ledger.program_accounts(Pubkey.from_string(program)):
            token = _token_account(account)
            if token is not None:
                found.append((address, account, token))
    return found


def _token_account(account: Account) -> TokenAccount | None:
    return read_token_account(str(account.owner), bytes(account.data))


def _mint(call: Call, address: Pubkey) -> Mint:
    account = call.ledger.account(address)
    mint = None if account is None else read_mint(str(account.owner), bytes(account.data))
    if mint is None:
        message = "could not find mint" if account is None else "not a Token mint"
        raise invalid(message)

    return mint


METHODS: dict[str, Handler] = {
    "getTokenAccountBalance": get_token_account_balance,
    "getTokenSupply": get_token_supply,
    "getTokenAccountsByOwner": get_token_accounts_by_owner,
    "getTokenAccountsByDelegate": get_token_accounts_by_delegate,
    "getTokenLargestAccounts": get_token_largest_accounts,
}
