"""The `Dummy` data location."""

from psyche_core.builtin.dummy_data import DummyData
from psyche_core.hookspecs import DataContext
from psyche_core.testing.data import DataConformance
from psyche_core.types import BatchId


class TestDummyData(DataConformance):
    source_can_break = False

    def provider(self, source: object) -> DummyData:
        return DummyData(sequence_length=self.sequence_length)

    def expected(self) -> list[bytes]:
        return [bytes(self.sequence_length * self.token_size)]


async def test_b58_length_is_the_runs() -> None:
    provider = DummyData.from_context(DataContext(settings=None, sequence_length=77))

    samples = await provider.read([BatchId(0, 2)], timeout=1.0)

    assert samples.sequence_length == 77
    assert samples.tokens == bytes(3 * 77 * 2)
