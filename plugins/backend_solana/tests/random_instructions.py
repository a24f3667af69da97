"""Instructions that somebody makes up: of our programs' own ones, with accounts exchanged, rights changed and data damaged.

Only the thief signs. What the tests ask is not which instruction is refused, but that none takes anything from anybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random

from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from tests.fuzz.mutation import change_bytes

MOST_ACCOUNTS = 20


class Thief:
    """Makes up instructions and counts what became of them.

    models: instructions as they succeed, the thief's own and others'. accounts: whatever may stand in the place of another one.
    accepted: first byte of the data -> how often; refused: reason -> how often.
    """

    def __init__(self, key: Keypair, models: Sequence[Instruction], accounts: Sequence[Pubkey], *, seed: int) -> None:
        self.key = key
        self.accepted: Counter[int] = Counter()
        self.refused: Counter[str] = Counter()
        self._models = models
        self._accounts = (*accounts, key.pubkey())
        self._random = Random(seed)

    def instructions(self, count: int) -> Iterator[Instruction]:
        """So many of them."""
        for _ in range(count):
            yield self._made_up(self._random.choice(self._models))

    def try_all(self, count: int, send: Callable[[Instruction], str | None], check: Callable[[Instruction], None]) -> None:
        """Send so many; `send` returns why one was refused. `check` is called after each that was not."""
        for instruction in self.instructions(count):
            refusal = send(instruction)
            if refusal is None:
                self.accepted[bytes(instruction.data)[0]] += 1
                check(instruction)
            else:
                self.refused[refusal] += 1

    def _made_up(self, model: Instruction) -> Instruction:
        random = self._random
        accounts = list(model.accounts)
        data = bytes(model.data)
        for _ in range(random.choice((0, 0, 1, 1, 2, 3))):
            self._meddle(accounts)
        if random.random() < 0.3:
            others = [bytes(other.data) for other in self._models if other.program_id == model.program_id]
            data = random.choice((change_bytes(data, random, others=others), random.choice(others), random.randbytes(len(data))))
        if random.random() < 0.8:  # as itself
            accounts = [self._as(meta, self.key.pubkey()) if meta.is_signer else meta for meta in accounts]
        mine = self.key.pubkey()
        signed = [AccountMeta(meta.pubkey, meta.is_signer and meta.pubkey == mine, meta.is_writable) for meta in accounts]
        return Instruction(model.program_id, data[:900], signed[:MOST_ACCOUNTS])

    def _meddle(self, accounts: list[AccountMeta]) -> None:
        random = self._random
        if not accounts:
            return

        place = random.randrange(len(accounts))
        meta, other = accounts[place], random.choice(accounts)
        match random.randrange(6):
            case 0 | 1:
                accounts[place] = self._as(meta, random.choice(self._accounts))
            case 2:
                accounts[place] = self._as(meta, other.pubkey)
            case 3:
                accounts[place] = AccountMeta(meta.pubkey, is_signer=not meta.is_signer, is_writable=meta.is_writable)
            case 4:
                accounts[place] = AccountMeta(meta.pubkey, is_signer=meta.is_signer, is_writable=not meta.is_writable)
            case _:
                del accounts[place]
                if random.random() < 0.5:
                    accounts.insert(random.randint(0, len(accounts)), self._as(other, random.choice(self._accounts)))

    @staticmethod
    def _as(meta: AccountMeta, key: Pubkey) -> AccountMeta:
        return AccountMeta(key, is_signer=meta.is_signer, is_writable=meta.is_writable)
