"""A model from disk to disk: what goes wrong on the way, on disk and in the sources, and what is left of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.builtin.memory_transport import MemoryTransport
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.model_sync import multi_source
from psyche_core.errors import ModelError, ModelHalfReplaced
from psyche_core.p2p.manifest import PIECE_BYTES, Manifest, cut
from psyche_core.storage.scratch import Scratch
from psyche_core.telemetry import events as telemetry
from weights import PIECES, RUN_ID, STEP, TAG, Member, Weights, party


def scratch_files(folder: Path) -> list[Path]:
    return sorted((folder / "scratch").iterdir())


@contextlib.contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """The system refuses to let any file of this process grow beyond: a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# ------------------------------------------------------------------------------------------------ sources that fail


class Faulty(MemoryTransport):
    """A source that treats some blobs badly. faults: what it does with the n-th different blob it is asked for, by n."""

    faults: Mapping[int, str] = {}

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.asked: list[bytes] = []

    async def blob(self, blob_hash: bytes) -> bytes | None:
        if blob_hash not in self.asked:
            self.asked.append(blob_hash)
        blob = await super().blob(blob_hash)
        fault = self.faults.get(self.asked.index(blob_hash)) if blob is not None else None
        if blob is None or fault == "withhold":
            return None
        if fault == "vanish":
            for peer in self.members:
                self._network.disconnect(self.peer_id, peer)
            return None
        if fault == "flip":
            return blob[:-1] + bytes((blob[-1] ^ 1,))
        if fault == "shorten":
            return blob[:-1]
        if fault == "lengthen":
            return blob + b"!"
        return blob


def withholding(*numbers: int) -> type[Faulty]:
    """A source that says no to these of the blobs it is asked for; 0 is the manifest."""
    return type("Withholding", (Faulty,), {"faults": dict.fromkeys(numbers, "withhold")})


FAULTS = st.dictionaries(
    st.integers(0, PIECES), st.sampled_from(["withhold", "vanish", "flip", "shorten", "lengthen"]), max_size=PIECES + 1
)


@settings(max_examples=15, deadline=None)
@given(st.lists(FAULTS, min_size=1, max_size=3), st.booleans())
def test_whatever_sources_do_a_joiner_has_the_model_or_what_it_had(
    tmp_path_factory: pytest.TempPathFactory, faults: list[dict[int, str]], honest: bool
) -> None:
    """And with an honest source among them it has the model."""

    async def play() -> None:
        kinds = [type("Source", (Faulty,), {"faults": table}) for table in faults]
        kinds += [MemoryTransport] * honest
        if not honest:  # nobody will come back: there is no use in waiting for it
            patch.setattr(multi_source, "fetch_timeout", lambda _: 0.3)
        async with party(tmp_path_factory.mktemp("party"), *kinds, MemoryTransport) as (*sources, joiner):
            offers = {await source.offer() for source in sources}
            before = joiner.holder.full_digest()
            answer = await joiner.fetch(offers.pop(), *sources)
            assert not offers
            if isinstance(answer, ev.ModelFetched):
                assert joiner.holder.full_digest() == sources[0].holder.full_digest() == answer.digest
            else:
                assert not honest, answer.reason
                assert joiner.holder.full_digest() == before
                joiner.exchange.check_usable()

    with pytest.MonkeyPatch.context() as patch:
        anyio.run(play)


class Lying(MemoryTransport):
    """Every blob it gives is false; it counts them."""

    told = 0

    async def blob(self, blob_hash: bytes) -> bytes | None:
        blob = await super().blob(blob_hash)
        if blob is None:
            return None

        self.told += 1
        return bytes(len(blob))


async def test_who_gave_wrong_bytes_is_asked_no_more_while_others_have_the_rest(tmp_path: Path) -> None:
    async with party(tmp_path, Lying, MemoryTransport, MemoryTransport, at_once=1) as (liar, honest, joiner):
        taken = await liar.offer()
        assert await honest.offer() == taken
        assert isinstance(await joiner.fetch(taken, liar, honest), ev.ModelFetched)
        assert isinstance(liar.transport, Lying)
        assert liar.transport.told == 1


async def test_what_a_joiner_has_so_far_others_get_from_it(tmp_path: Path) -> None:
    async with party(tmp_path, withholding(2, 4), MemoryTransport, MemoryTransport, seeds=(0, 1, 2)) as (maker, one, other):
        taken = await maker.offer()
        assert isinstance(await one.fetch(taken, maker), ev.ModelFetchFailed)
        assert one.progress()[-1].pieces_done == PIECES - 2

        for member in (one, other):  # the only one who has it all is gone
            await member.transport.set_peers({one.key: b"", other.key: b""})
        assert isinstance(await other.fetch(taken, maker), ev.ModelFetchFailed)
        assert other.progress()[-1].pieces_done == PIECES - 2
        assert other.transport.stats.bytes_received == one.transport.stats.bytes_sent > 0


# ------------------------------------------------------------------------------------------------ disks that fail


async def test_a_full_disk_prevents_an_offer_with_a_sentence(tmp_path: Path) -> None:
    async with party(tmp_path, MemoryTransport) as (maker,):
        with files_no_longer_than(PIECE_BYTES):
            failed = await maker.exchange.offer(maker.holder, act.TakeSnapshot(STEP, TAG), run_id=RUN_ID)
        assert isinstance(failed, ev.SnapshotFailed)
        assert "cannot be offered to others: the scratch file could not be used" in failed.reason
        assert maker.told == [telemetry.Problem("warning", failed.reason)]
        assert not scratch_files(tmp_path)
        await maker.offer()


async def test_a_full_disk_prevents_a_fetch_and_changes_nothing(tmp_path: Path) -> None:
    async with party(tmp_path, MemoryTransport, MemoryTransport) as (maker, joiner):
        taken, before = await maker.offer(), joiner.holder.full_digest()
        with files_no_longer_than(PIECE_BYTES):
            failed = await joiner.fetch(taken, maker)
        assert isinstance(failed, ev.ModelFetchFailed)
        assert "the scratch file could not be used" in failed.reason
        assert joiner.holder.full_digest() == before
        assert len(scratch_files(tmp_path)) == 1, "what was left of the attempt takes room"
        joiner.exchange.check_usable()
        assert isinstance(await joiner.fetch(taken, maker), ev.ModelFetched)


async def test_a_model_that_does_not_fit_the_disk_is_known_before_a_byte_is_written(tmp_path: Path) -> None:
    class Vast(Weights):
        """Says that it has more values than any disk can hold."""

        @property
        def table(self) -> Any:
            return tuple(type(parameter)(parameter.name, (10**7, 10**7)) for parameter in super().table[:1])

        def read_piece(self, piece: Any) -> bytes:
            pytest.fail("it was read")

    async with party(tmp_path, MemoryTransport) as (maker,):
        shape = Weights(0, {"a": (4, PIECE_BYTES)})
        pieces = cut(shape.table)
        file = maker.exchange._snapshot_file(pieces)
        huge = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize * 2  # other processes may free some meanwhile
        with pytest.raises(OSError, match="bytes are needed in"):
            file._file.reserve(huge, [(0, huge)])
        assert file._file.path.stat().st_size == 4 * 4 * PIECE_BYTES
        file.remove()


class Spoiling(Weights):
    """Before it takes over what was fetched, something on this machine spoils the file, once."""

    how = "overwritten"
    spoilt = False

    def install(self, manifest: Manifest, pieces: Mapping[int, bytes | memoryview]) -> None:
        if not self.spoilt:
            self.spoilt = True
            (path,) = (path for path in self.folder.iterdir() if path.name.startswith("resumable"))
            size = path.stat().st_size
            if self.how == "overwritten":
                with path.open("r+b") as file:
                    file.seek(PIECE_BYTES + 12)  # the second piece
                    file.write(b"spoilt")
            else:
                os.truncate(path, size - PIECE_BYTES // 2)
        super().install(manifest, pieces)

    folder: Path


@pytest.mark.parametrize("how", ["overwritten", "truncated"])
async def test_a_piece_that_goes_bad_on_disk_is_fetched_again_and_nothing_else(tmp_path: Path, how: str) -> None:
    async with party(tmp_path, MemoryTransport, MemoryTransport) as (maker, joiner):
        holder = Spoiling(1)
        holder.how, holder.folder = how, tmp_path / "scratch"
        joiner.holder = holder
        taken = await maker.offer()
        assert isinstance(await joiner.fetch(taken, maker), ev.ModelFetched)
        assert holder.spoilt
        again = joiner.progress()[-1]
        assert again.pieces_total == PIECES
        received = joiner.transport.stats.bytes_received - taken.manifest_bytes
        whole = sum(array.nbytes for array in joiner.holder.masters.values())
        assert whole < received <= whole + 2 * PIECE_BYTES


class Halfway(Weights):
    """Fails in the middle of replacing, so many times."""

    failures = 1

    def install(self, manifest: Manifest, pieces: Mapping[int, bytes | memoryview]) -> None:
        if self.failures:
            self.failures -= 1
            self.masters["bias"][:] = 0.5
            message = "the model was replaced in part only"
            raise ModelHalfReplaced(message)

        super().install(manifest, pieces)


async def test_masters_replaced_half_way_are_replaced_again_at_once(tmp_path: Path) -> None:
    async with party(tmp_path, MemoryTransport, MemoryTransport) as (maker, joiner):
        joiner.holder = Halfway(1)
        assert isinstance(await joiner.fetch(await maker.offer(), maker), ev.ModelFetched)
        assert joiner.holder.full_digest() == maker.holder.full_digest()
        joiner.exchange.check_usable()


async def test_masters_that_stay_half_replaced_are_of_no_use_until_a_fetch_succeeds(tmp_path: Path) -> None:
    async with party(tmp_path, MemoryTransport, MemoryTransport) as (maker, joiner):
        holder = Halfway(1)
        holder.failures = 2
        joiner.holder = holder
        taken = await maker.offer()
        failed = await joiner.fetch(taken, maker)
        assert isinstance(failed, ev.ModelFetchFailed)
        assert "replaced in part only" in failed.reason
        with pytest.raises(ModelError, match="in part only"):
            joiner.exchange.check_usable()
        refused = await joiner.exchange.offer(holder, act.TakeSnapshot(STEP, TAG), run_id=RUN_ID)
        assert isinstance(refused, ev.SnapshotFailed)

        before = joiner.transport.stats.bytes_received
        assert isinstance(await joiner.fetch(taken, maker), ev.ModelFetched)
        assert joiner.transport.stats.bytes_received == before, "the pieces were there already"
        assert holder.full_digest() == maker.holder.full_digest()
        joiner.exchange.check_usable()


# ------------------------------------------------------------------------------------------------ coming back


HALF_WAY = """
import sys
from pathlib import Path
import anyio
from psyche_core.builtin.memory_transport import MemoryTransport
from weights import party

class Stopping(MemoryTransport):
    fetched = 0
    async def fetch(self, blob_hash, **how):
        if self.fetched == 1 + 4:  # the manifest and four pieces
            print("half way", flush=True)
            await anyio.sleep_forever()
        blob = await super().fetch(blob_hash, **how)
        self.fetched += 1
        return blob

async def play():
    async with party(Path(sys.argv[1]), MemoryTransport, Stopping, at_once=1) as (maker, joiner):
        await joiner.fetch(await maker.offer(), maker)

anyio.run(play)
"""


def killed_half_way(folder: Path) -> Path:
    """The file that a process leaves behind which is killed (kill -9) while it fetches."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", HALF_WAY, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "half way\n"
        finally:
            process.send_signal(signal.SIGKILL)
    (left,) = (file for file in scratch_files(folder) if file.name.startswith("resumable"))
    return left


async def resumed(folder: Path) -> Member:
    """A new joiner fetches the same model in the same folder."""
    async with party(folder, MemoryTransport, MemoryTransport) as (maker, joiner):
        assert isinstance(await joiner.fetch(await maker.offer(), maker), ev.ModelFetched)
        assert joiner.holder.full_digest() == maker.holder.full_digest()
        return joiner


async def test_a_process_that_was_killed_finds_its_pieces_again(tmp_path: Path) -> None:
    left = await anyio.to_thread.run_sync(killed_half_way, tmp_path)
    joiner = await resumed(tmp_path)
    assert joiner.progress()[0].pieces_done == 4
    assert not left.exists(), "it was not removed at the end"
    assert not scratch_files(tmp_path), "the killed process's snapshot is still there"


@pytest.mark.parametrize("how", ["truncated", "emptied", "overwritten", "lengthened"])
async def test_what_became_of_the_file_meanwhile_is_noticed_and_fetched_again(tmp_path: Path, how: str) -> None:
    left = await anyio.to_thread.run_sync(killed_half_way, tmp_path)
    size = left.stat().st_size
    if how == "overwritten":
        left.write_bytes(os.urandom(size))
    else:
        os.truncate(left, {"truncated": size // 2, "emptied": 0, "lengthened": 2 * size}[how])
    done = (await resumed(tmp_path)).progress()[0].pieces_done
    assert done == 4 if how == "lengthened" else done < 4


async def test_two_programs_that_fetch_one_model_in_one_folder_do_not_share_a_file(tmp_path: Path) -> None:
    async with party(tmp_path, MemoryTransport, MemoryTransport, MemoryTransport, seeds=(0, 1, 2)) as (maker, one, other):
        taken = await maker.offer()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.fetch, taken, maker)
            tasks.start_soon(other.fetch, taken, maker)
        assert {one.holder.full_digest(), other.holder.full_digest()} == {maker.holder.full_digest()}
        assert len(scratch_files(tmp_path)) == 3


async def test_an_unfinished_fetch_is_kept_at_the_end_and_everything_else_removed(tmp_path: Path) -> None:
    async with party(tmp_path, withholding(4), MemoryTransport, at_once=1) as (maker, joiner):
        assert isinstance(await joiner.fetch(await maker.offer(), maker), ev.ModelFetchFailed)
        assert len(scratch_files(tmp_path)) == 2
    (left,) = scratch_files(tmp_path)
    assert left.name.startswith("resumable")

    long_ago = left.stat().st_mtime - 2 * 24 * 3600
    os.utime(left, (long_ago, long_ago))
    await anyio.to_thread.run_sync(Scratch, tmp_path)
    assert not scratch_files(tmp_path)


async def test_another_manifest_ends_what_was_begun(tmp_path: Path) -> None:
    async with party(tmp_path, withholding(4), MemoryTransport, at_once=1) as (maker, joiner):
        assert isinstance(await joiner.fetch(await maker.offer(), maker), ev.ModelFetchFailed)
        maker.holder.masters["bias"] += np.float32(1)
        assert isinstance(maker.transport, Faulty)
        maker.transport.faults = {}
        assert isinstance(await joiner.fetch(await maker.offer(), maker), ev.ModelFetched)
        assert len([file for file in scratch_files(tmp_path) if file.name.startswith("resumable")]) == 1


def test_the_sources_of_these_tests_hold_the_same() -> None:
    assert Weights(0).full_digest() == Weights(0).full_digest() != Weights(1).full_digest()
    assert len(cut(Weights(0).table)) == PIECES
    assert len({hashlib.sha256(Weights(0).read_piece(piece)).digest() for piece in cut(Weights(0).table)}) == PIECES
