"""Conformance of data providers: what `psyche_core.interfaces.data` promises, as tests a plugin author inherits.

    class TestMyData(DataConformance):
        def provider(self, source: Path) -> DataProvider:
            return MyData(source, sequence_length=self.sequence_length, token_size=self.token_size)

`source` is a folder of token files with known tokens. If a provider reads from elsewhere (a server, a bucket), override the
fixture `source` to put `token_folder` there. A provider whose samples do not come from files overrides `expected` and sets
`source_can_break = False`; nothing else is optional.
"""

# ruff: noqa: D102  # the tests' names describe them

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.lowlevel

from psyche_core.errors import DataError
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.testing.conformance import Conformance
from psyche_core.testing.contracts import CONTRACTS, Contract
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.sentences import raises, shown
from psyche_core.types import BatchId

TIMEOUT = 20.0


@pytest.mark.anyio
class DataConformance(Conformance):
    """Inherit from it and write `provider`.

    Attributes:
        sequence_length: tokens per sample of the standard source.
        token_size: bytes per token.
        file_sequences: number of whole sequences in each of its files.
        stray_tokens: number of tokens after the last whole sequence of each file (0 twice: exact multiples, where the last
            sequence counts).
    """

    contract: ClassVar[Contract] = CONTRACTS["data"]
    sequence_length = 8
    token_size = 2
    file_sequences: tuple[int, ...] = (5, 1, 7)
    stray_tokens: tuple[int, ...] = (0, 3, 0)
    source_can_break = True

    def provider(self, source: Any) -> DataProvider:
        """A new provider that reads the source in its own order; not yet entered."""
        raise NotImplementedError

    def expected(self) -> list[bytes]:
        """The tokens of every distinct sample, by number."""
        size = self.sequence_length * self.token_size
        return [
            tokens[at : at + size]
            for tokens, sequences in zip(self.file_tokens(), self.file_sequences, strict=True)
            for at in range(0, sequences * size, size)
        ]

    def break_source(self, token_folder: Path) -> None:
        """Damage the source after a provider was entered: remove half the bytes of the last file."""
        last = max(token_folder.iterdir())
        content = last.read_bytes()
        last.write_bytes(content[: len(content) // 2])

    def file_tokens(self) -> list[bytes]:
        """Contents of the standard source's files: every token differs from its neighbours."""
        contents, number = [], 1
        for sequences, strays in zip(self.file_sequences, self.stray_tokens, strict=True):
            count = sequences * self.sequence_length + strays
            contents.append(b"".join(value.to_bytes(self.token_size, "little") for value in range(number, number + count)))
            number += count

        return contents

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop for the tests."""
        return "asyncio"

    @pytest.fixture
    def token_folder(self, tmp_path: Path) -> Path:
        """The standard source: `000.bin`, `001.bin`, …"""
        folder = tmp_path / "tokens"
        folder.mkdir()
        for number, content in enumerate(self.file_tokens()):
            (folder / f"{number:03}.bin").write_bytes(content)

        return folder

    @pytest.fixture
    def source(self, token_folder: Path) -> Any:
        """The argument of `provider`."""
        return token_folder

    async def test_counts_every_whole_sequence(self, source: Any) -> None:
        async with self.provider(source) as provider:
            assert provider.sequence_length == self.sequence_length, (
                f"sequence_length must be the tokens of a sample, {self.sequence_length}, got {provider.sequence_length}"
            )
            assert provider.num_sequences == len(self.expected()), (
                "num_sequences must count every whole sequence of each file and none that is cut off, "
                f"{len(self.expected())}, got {provider.num_sequences}"
            )

    async def test_every_number_has_its_tokens(self, source: Any) -> None:
        async with self.provider(source) as provider:
            for number, tokens in enumerate(self.expected()):
                samples = await provider.read([BatchId(number, number)], timeout=TIMEOUT)
                assert samples.tokens == tokens, (
                    f"sample {number} must have the tokens of its place in the source, {shown(tokens)}, got "
                    f"{shown(samples.tokens)}"
                )

    async def test_last_sequence_is_present(self, source: Any) -> None:
        last = len(self.expected()) - 1
        async with self.provider(source) as provider:
            samples = await provider.read([BatchId(last, last)], timeout=TIMEOUT)

        assert samples.tokens == self.expected()[-1], (
            f"the last whole sequence counts: sample {last} must have the tokens {shown(self.expected()[-1])}, got "
            f"{shown(samples.tokens)}"
        )

    async def test_an_interval_is_read_in_order_with_both_ends(self, source: Any) -> None:
        last = len(self.expected()) - 1
        async with self.provider(source) as provider:
            samples = await provider.read([BatchId(0, last)], timeout=TIMEOUT)

        self._check(samples, list(range(last + 1)), f"read of the interval 0 to {last}, both included, must give each in order")

    async def test_intervals_are_read_in_the_order_given(self, source: Any) -> None:
        last = len(self.expected()) - 1
        batches = [BatchId(last, last), BatchId(0, last // 2), BatchId(last, last), BatchId(last // 2, last)]
        numbers = [number for batch in batches for number in range(batch.first, batch.last + 1)]
        async with self.provider(source) as provider:
            samples = await provider.read(batches, timeout=TIMEOUT)

        self._check(samples, numbers, "read must give the samples of all intervals, concatenated in the order given")

    async def test_many_intervals_at_once(self, source: Any) -> None:
        numbers = [(7 * step) % 100 for step in range(300)]
        async with self.provider(source) as provider:
            samples = await provider.read([BatchId(number, number) for number in numbers], timeout=TIMEOUT)

        self._check(samples, numbers, "read of 300 intervals at once must give the samples of all, concatenated in order")

    async def test_numbers_past_the_end_wrap_around(self, source: Any) -> None:
        count = len(self.expected())
        numbers = [*range(count - 1, 2 * count + 1)]
        far = 2**62 // count * count
        async with self.provider(source) as provider:
            across = await provider.read([BatchId(numbers[0], numbers[-1])], timeout=TIMEOUT)
            distant = await provider.read([BatchId(far, far)], timeout=TIMEOUT)

        self._check(across, numbers, f"numbers past the end must wrap around (index mod num_sequences), so {count} is sample 0")
        self._check(distant, [0], f"numbers count over the whole run and must wrap around however large they are, such as {far}")

    async def test_no_intervals_are_no_samples(self, source: Any) -> None:
        async with self.provider(source) as provider:
            samples = await provider.read([], timeout=TIMEOUT)

        self._check(samples, [], "read of no intervals must give no samples")

    async def test_two_providers_read_the_same(self, source: Any) -> None:
        batches = [BatchId(3, 9), BatchId(0, 1)]
        async with self.provider(source) as one, self.provider(source) as other:
            first, second = [await provider.read(batches, timeout=TIMEOUT) for provider in (one, other)]
            assert first == second, (
                f"the same number must give the same tokens to every member; one provider gave {_brief(first)}, another "
                f"{_brief(second)}"
            )

    async def test_no_time_is_a_timeout_and_the_provider_goes_on(self, source: Any) -> None:
        async with self.provider(source) as provider:
            with raises(TimeoutError, "read must raise TimeoutError when its timeout is over, here 0 s"):
                await provider.read([BatchId(0, 2)], timeout=0.0)

            samples = await provider.read([BatchId(0, 2)], timeout=TIMEOUT)
            self._check(samples, [0, 1, 2], "after a read that ended with TimeoutError the next one must work")

    async def test_a_cancelled_read_leaves_the_provider_usable(self, source: Any) -> None:
        async with self.provider(source) as provider:
            async with anyio.create_task_group() as tasks:

                async def read() -> None:
                    await provider.read([BatchId(0, 5)], timeout=TIMEOUT)

                tasks.start_soon(read)
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()

            samples = await provider.read([BatchId(1, 1)], timeout=TIMEOUT)
            self._check(samples, [1], "after a read that was cancelled the next one must work")

    async def test_a_damaged_source_is_a_data_error_and_no_short_batch(self, source: Any, token_folder: Path) -> None:
        if not self.source_can_break:
            pytest.skip("its samples do not come from a source that could be damaged")

        last = len(self.expected()) - 1
        async with self.provider(source) as provider:
            self.break_source(token_folder)
            wanted = "a batch that cannot be read must raise DataError, and is never shortened or skipped"
            with raises(DataError, wanted) as caught:
                await provider.read([BatchId(0, last)], timeout=TIMEOUT)

        assert len(str(caught.value)) > 20, (
            f"a DataError must say what was got, what was expected and what to do, got {shown(str(caught.value))}"
        )

    async def test_closing_twice_is_closing_once(self, source: Any) -> None:
        never_entered = self.provider(source)
        await never_entered.aclose()

        async with self.provider(source) as provider:
            await provider.aclose()
            await provider.aclose()

    def _check(self, samples: Samples, numbers: list[int], wanted: str) -> None:
        """Compare samples with those of the numbers, in all fields. wanted: what the contract wants."""
        __tracebackhide__ = True  # so that pytest shows the test
        expected = self._samples(numbers)
        assert samples == expected, (
            f"{wanted}, {_brief(expected)}, got {_brief(samples)}{self._first_other(samples, expected, numbers)}"
        )

    def _first_other(self, samples: Samples, expected: Samples, numbers: list[int]) -> str:
        """Where two reads of the same size part, for a message: both may begin alike."""
        size = self.sequence_length * self.token_size
        if len(samples.tokens) != len(expected.tokens):
            return ""
        for place, number in enumerate(numbers):
            if samples.tokens[place * size : (place + 1) * size] != expected.tokens[place * size : (place + 1) * size]:
                return f"; the first wrong row is {place}, which should be sample {number % len(self.expected())}"
        return ""

    def _samples(self, numbers: list[int]) -> Samples:
        rows = self.expected()
        tokens = b"".join(rows[number % len(rows)] for number in numbers)
        return Samples(tokens, len(numbers), self.sequence_length, self.token_size)


def _brief(samples: Samples) -> str:
    """Samples in a message."""
    size = f"{samples.count} samples of {samples.sequence_length} tokens of {samples.token_size} bytes"
    more = [name for name in ("labels", "position_ids", "sequence_lengths") if getattr(samples, name) is not None]
    return f"{size} {shown(samples.tokens)}{' and ' if more else ''}{', '.join(more)}"
