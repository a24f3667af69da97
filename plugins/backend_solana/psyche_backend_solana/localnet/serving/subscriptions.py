"""Subscriptions of all websocket connections, and the notifications that follow from new events.

It reads the ledger, does no other I/O, and is used in the ledger's thread only. A confirmation is sent before the first
notification. A connection gets events in the order in which they happened, one notification per transaction that wrote an
account. A closed account is notified to accountSubscribe (empty, owned by the system program) and not to programSubscribe, as by
a real validator.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.localnet.ledger.genesis import SYSTEM
from psyche_backend_solana.localnet.ledger.ledger import Ledger
from psyche_backend_solana.localnet.ledger.records import AccountSet, Event, Landed, SlotBegan, TransactionRecord
from psyche_backend_solana.localnet.methods.call import Call, with_context
from psyche_backend_solana.localnet.rpc.account_filters import Filter, read_filters
from psyche_backend_solana.localnet.rpc.encoding import Encoding, encode_account
from psyche_backend_solana.localnet.rpc.parameters import read_pubkey, shown
from psyche_backend_solana.localnet.rpc_error import INTERNAL_ERROR, RpcError, invalid

_EMPTY = Account(0, b"", SYSTEM, False, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A subscription of a connection. react: returns the results to notify for an event. ends: it ends after one notification."""

    number: int
    connection: int
    kind: str
    react: Callable[[Event], Iterator[Any]]
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Notification:
    """A message to a connection."""

    connection: int
    message: dict[str, Any]


class Subscriptions:
    """All subscriptions on one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._numbers = itertools.count(1)
        self._all: dict[int, Subscription] = {}
        self._kinds = {
            "account": self._account,
            "program": self._program,
            "signature": self._signature,
            "logs": self._logs,
            "slot": self._slot,
            "root": self._root,
        }

    def __len__(self) -> int:
        return len(self._all)

    def knows(self, method: str) -> bool:
        """Return whether this is a websocket method."""
        kind, _, action = _split(method)
        return kind in self._kinds and action in ("Subscribe", "Unsubscribe")

    def answer(self, connection: int, method: str, call: Call) -> int | bool:
        """Subscribe (a number) or unsubscribe (true). Raises RpcError."""
        kind, _, action = _split(method)
        if action == "Unsubscribe":
            number = call.params(most=1).integer(0, "subscription")
            known = self._all.get(number)
            if known is None or (known.connection, known.kind) != (connection, kind):
                message = "Invalid subscription id."
                raise RpcError(-32602, message)

            del self._all[number]
            return True

        held = sum(1 for one in self._all.values() if one.connection == connection)
        if held >= call.limits.subscriptions:
            message = f"a connection may hold {call.limits.subscriptions} subscriptions; unsubscribe or open another one"
            raise RpcError(INTERNAL_ERROR, message)

        number = next(self._numbers)
        react = self._kinds[kind](call)
        self._all[number] = Subscription(number=number, connection=connection, kind=kind, react=react, ends=kind == "signature")
        return number

    def first_words(self, number: int, call: Call) -> list[Notification]:
        """Return the first notifications of a new subscription: the result of a signature that is already processed."""
        subscription = self._all[number]
        if subscription.kind != "signature":
            return []

        record = self._ledger.history.record(call.params(most=2).signature(0))
        return [] if record is None else list(self._notifications_of(subscription, Landed(record, ())))

    def leave(self, connection: int) -> None:
        """Remove the subscriptions of a connection that has ended."""
        self._all = {number: one for number, one in self._all.items() if one.connection != connection}

    def notifications_of(self, events: list[Event]) -> list[Notification]:
        """The notifications for new events, in order."""
        return [note for event in events for one in list(self._all.values()) for note in self._notifications_of(one, event)]

    def _notifications_of(self, subscription: Subscription, event: Event) -> Iterator[Notification]:
        for result in subscription.react(event):
            params = {"result": result, "subscription": subscription.number}
            message = {"jsonrpc": "2.0", "method": f"{subscription.kind}Notification", "params": params}
            yield Notification(subscription.connection, message)
            if subscription.ends and result.get("value") != "receivedSignature":
                self._all.pop(subscription.number, None)

    # ------------------------------------------------------------ kinds

    def _account(self, call: Call) -> Callable[[Event], Iterator[Any]]:
        params = call.params(most=2)
        address = params.pubkey(0)
        encoding = call.options(params, 1).encoding()
        wanted = str(address)

        def react(event: Event) -> Iterator[Any]:
            if wanted in _written(event):
                yield self._in_context(self._encoded(self._ledger.account(address) or _EMPTY, encoding))

        return react

    def _program(self, call: Call) -> Callable[[Event], Iterator[Any]]:
        params = call.params(most=2)
        program, options = params.pubkey(0, "program"), call.options(params, 1)
        encoding, matches = options.encoding(), read_filters(options.get("filters"))

        def react(event: Event) -> Iterator[Any]:
            for written in _written(event):
                yield from self._program_account(Pubkey.from_string(written), program, matches, encoding)

        return react

    def _program_account(self, address: Pubkey, program: Pubkey, matches: Filter, encoding: Encoding) -> Iterator[Any]:
        account = self._ledger.account(address)
        if account is not None and account.owner == program and matches(bytes(account.data)):
            yield self._in_context({"pubkey": str(address), "account": self._encoded(account, encoding)})

    def _signature(self, call: Call) -> Callable[[Event], Iterator[Any]]:
        params = call.params(most=2)
        signature, early = params.signature(0), call.options(params, 1).flag("enableReceivedNotification")

        def react(event: Event) -> Iterator[Any]:
            if isinstance(event, Landed) and event.record.signature == signature:
                if early:
                    yield with_context(event.record.slot, "receivedSignature")
                yield with_context(event.record.slot, {"err": event.record.err})

        return react

    def _logs(self, call: Call) -> Callable[[Event], Iterator[Any]]:
        params = call.params(most=2)
        mentioned = _read_mentions(params.required(0, "filter"))
        call.options(params, 1)

        def react(event: Event) -> Iterator[Any]:
            if isinstance(event, Landed) and (mentioned is None or mentioned in event.record.accounts):
                yield _logs_result(event.record)

        return react

    def _slot(self, call: Call) -> Callable[[Event], Iterator[Any]]:
        call.params(most=0)

        def react(event: Event) -> Iterator[Any]:
            if isinstance(event, SlotBegan):
                yield {"parent": event.parent, "root": event.slot, "slot": event.slot}

        return react

    def _root(self, call: Call) -> Callable[[Event], Iterator[Any]]:
        call.params(most=0)

        def react(event: Event) -> Iterator[Any]:
            if isinstance(event, SlotBegan):
                yield event.slot

        return react

    def _in_context(self, value: Any) -> dict[str, Any]:
        return with_context(self._ledger.slot, value)

    def _encoded(self, account: Account, encoding: Encoding) -> dict[str, Any]:
        try:
            return encode_account(account, encoding, decimals=self._ledger.decimals)
        except RpcError as error:  # base58 of a large account: a real validator also returns the message in place of data
            return {
                **encode_account(account, Encoding(name="base64", length=0), decimals=self._ledger.decimals),
                "data": str(error),
            }


def _split(method: str) -> tuple[str, str, str]:
    for action in ("Unsubscribe", "Subscribe"):
        if method.endswith(action):
            return method.removesuffix(action), "", action
    return method, "", ""


def _written(event: Event) -> tuple[str, ...]:
    match event:
        case Landed():
            return event.written
        case AccountSet():
            return (event.address,)
    return ()


def _read_mentions(value: object) -> str | None:
    match value:
        case "all" | "allWithVotes":
            return None
        case {"mentions": [only]}:
            return str(read_pubkey(only, "mentions"))
    message = f'the filter is "all" or an object whose mentions name one address, got {shown(value)}'
    raise invalid(message)


def _logs_result(record: TransactionRecord) -> dict[str, Any]:
    return with_context(record.slot, {"signature": record.signature, "err": record.err, "logs": record.logs})
