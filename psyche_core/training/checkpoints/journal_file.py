"""One file of a journal: read to the last whole frame, and appended to.

It knows the place of each payload and which results are in the file. Appended data waits in memory until `sync`. Synced data is
not written again, so a failed write loses nothing written before it. A record that does not fit those before it is refused: a
step that does not follow, a payload that is not in the file. `journal` decides which file it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from psyche_core.errors import WireError
from psyche_core.regular_files import regular
from psyche_core.training.checkpoints.journal_records import (
    CHECK_BYTES,
    FRAME,
    START,
    AppliedRound,
    Frame,
    Header,
    Kind,
    StoredResult,
    encode_record,
    frame_head,
    kind_of,
    read_frame,
)


class JournalFile:
    """Made by `create` or `load`. header: its first frame. last_step: the last one applied; step of the base when none was.

    synced_step: the same of what is on the disk. pending: results of later steps than the last. rounds: those that `load` found;
    lost: bytes behind the last whole frame that it cut off.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._end = 0
        self._check = START
        self._payloads: dict[bytes, tuple[int, int]] = {}  # where the body lies, and its length
        self._commitments: set[bytes] = set()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._waiting_payloads: dict[bytes, bytes] = {}
        self.header: Header
        self.last_step = 0
        self.synced_step = 0
        self.rounds: list[AppliedRound] = []
        self.pending: list[StoredResult] = []
        self.lost = 0

    @classmethod
    def create(cls, path: Path, header: Header) -> Self:
        """A new file in place of any of that name, not flushed yet. Raises OSError, and WireError for a header out of range."""
        body = encode_record(header)
        made = cls(io.FileIO(path, "w+", opener=regular))
        try:
            made._take_header(header)
            made._waiting, made._waiting_bytes = [START], len(START)
            made._append(Kind.Header, body, hashlib.sha256(body).digest())
        except BaseException:
            made.close()
            raise
        return made

    @classmethod
    def load(cls, path: Path) -> Self:
        """Open a file, read all that is whole and cut off the rest. Raises OSError, and WireError without a header to go by."""
        made = cls(io.FileIO(path, "r+", opener=regular))
        try:
            made._load()
        except BaseException:
            made.close()
            raise
        return made

    def close(self) -> None:
        """Let go of the file; what waits is lost. Idempotent."""
        self._file.close()

    @property
    def size(self) -> int:
        """Bytes, with those that wait."""
        return self._end + self._waiting_bytes

    @property
    def waiting(self) -> int:
        """Bytes that wait for `sync`."""
        return self._waiting_bytes

    def has_payload(self, payload_hash: bytes) -> bool:
        """Whether a payload is here, synced or not."""
        return payload_hash in self._payloads

    def has_result(self, commitment: bytes) -> bool:
        """Whether a result is here, synced or not."""
        return commitment in self._commitments

    def payload(self, payload_hash: bytes) -> bytes:
        """A payload's bytes. Raises KeyError for one that is not here, WireError for one that changed on the disk, OSError."""
        waiting = self._waiting_payloads.get(payload_hash)
        if waiting is not None:
            return waiting

        at, length = self._payloads[payload_hash]
        self._file.seek(at)
        found = self._file.read(length)
        if hashlib.sha256(found).digest() != payload_hash:
            message = f"payload {payload_hash.hex()[:16]}… is not the one that was written"
            raise WireError(message)

        return found

    def add_payload(self, payload: bytes, digest: bytes) -> None:
        """Append a payload, once. digest: its SHA-256."""
        if digest not in self._payloads:
            self._payloads[digest] = (self.size + FRAME.size, len(payload))
            self._waiting_payloads[digest] = payload
            self._append(Kind.Payload, payload, digest)

    def add(self, record: StoredResult | AppliedRound) -> None:
        """Append a record. Raises WireError, and has changed nothing then, for one that cannot be written or does not fit."""
        body = encode_record(record)
        self._take(record)
        self._append(kind_of(record), body, hashlib.sha256(body).digest())

    def sync(self) -> None:
        """Bring what waits to the disk. Raises OSError; it waits on then, and the file is as it was."""
        if not self._waiting:
            return

        try:
            self._file.seek(self._end)
            for part in self._waiting:
                view = memoryview(part)
                while view:
                    view = view[self._file.write(view) :]
            os.fsync(self._file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)  # what is behind would be read as damage
            raise

        self._end += self._waiting_bytes
        self._waiting, self._waiting_bytes, self._waiting_payloads = [], 0, {}
        self.synced_step = self.last_step

    def drop_waiting(self) -> None:
        """Give up what waits; nothing may be appended any more."""
        self._waiting, self._waiting_bytes, self._waiting_payloads = [], 0, {}

    def records(self) -> Iterator[StoredResult | AppliedRound]:
        """Results and rounds that were synced, as they lie in the file. Raises OSError, WireError."""
        at, check = len(START), START
        while at < self._end:
            self._file.seek(at)
            frame = read_frame(self._file, before=check, left=self._end - at)
            assert frame is not None
            at, check = frame.at + frame.length, frame.check
            if isinstance(frame.record, StoredResult | AppliedRound):
                yield frame.record

    def _load(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        start = self._file.read(len(START))
        if start != START:
            message = "it is of another version, or its beginning is damaged"
            raise WireError(message)

        first = read_frame(self._file, before=START, left=size - len(START))
        if first is None or not isinstance(first.record, Header):
            message = "its beginning is damaged"
            raise WireError(message)

        self._take_header(first.record)
        self._end, self._check = first.at + first.length, first.check
        with contextlib.suppress(WireError):  # what comes from there on does not count
            while (frame := read_frame(self._file, before=self._check, left=size - self._end)) is not None:
                self._take_frame(frame)
                self._end, self._check = frame.at + frame.length, frame.check
        self.lost = size - self._end
        self.synced_step = self.last_step
        if self.lost:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)

    def _take_frame(self, frame: Frame) -> None:
        match frame.record:
            case None:
                self._payloads.setdefault(frame.digest, (frame.at, frame.length))
            case Header():
                message = "a second header"
                raise WireError(message)
            case StoredResult() as result:
                self._take(result)
            case AppliedRound() as applied:
                self._take(applied)
                self.rounds.append(applied)

    def _take_header(self, header: Header) -> None:
        self.header = header
        self.last_step = self.synced_step = header.base_step

    def _take(self, record: StoredResult | AppliedRound) -> None:
        """Know of a record. Raises WireError for one that does not fit those before it."""
        for each in named(record):
            if each not in self._payloads:
                message = f"payload {each.hex()[:16]}… of step {record.step} is not in the journal"
                raise WireError(message)

        if isinstance(record, StoredResult):
            self._commitments.add(record.commitment)
            if record.step > self.last_step:
                self.pending.append(record)
        elif record.step != self.last_step + 1:
            message = f"it goes on with step {self.last_step + 1}, got step {record.step}"
            raise WireError(message)
        else:
            self.last_step = record.step
            self.pending = [each for each in self.pending if each.step > record.step]

    def _append(self, kind: Kind, body: bytes, digest: bytes) -> None:
        head = frame_head(kind, len(body), digest, before=self._check)
        self._check = head[-CHECK_BYTES:]
        self._waiting += (head, body)
        self._waiting_bytes += len(head) + len(body)


def named(record: StoredResult | AppliedRound) -> tuple[bytes, ...]:
    """The payloads a record speaks of, by SHA-256."""
    return (record.payload_hash,) if isinstance(record, StoredResult) else record.payload_hashes
