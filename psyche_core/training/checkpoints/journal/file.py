"""One file of a journal: reads all complete frames, and appends to them.

It stores the position of each payload and which results are in the file. Appended data stays in memory until `sync`. Synced data
is not written again, so a failed write does not damage data written before it. A record that does not fit the earlier records
raises WireError: for example a step that is not the next one, or a payload that is not in the file. `journal` decides which file
is used.
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
    MAGIC,
    MAX_RECORD_BYTES,
    START,
    AppliedRound,
    Frame,
    Header,
    Kind,
    StoredResult,
    decode_record,
    encode_record,
    frame_head,
    kind_of,
    read_frame,
)

_DAMAGED = "its beginning is damaged, so that nothing in it can be read"


class OtherVersion(WireError):
    """The file is a journal in a format of another version."""


class JournalFile:
    """A file of a journal, made by `create` or `load`.

    header: content of its first frame. last_step: step of the last applied round, or of the base if there is none. synced_step:
    the same for the data that is on the disk. pending: results of later steps than last_step. rounds: the rounds that `load`
    found. lost: number of bytes after the last complete frame; `cut` removes them. damage: why they were not read, empty if
    there are none. largest: number of bytes of the largest complete frame. lost_step: the last round that is recognizable in
    these bytes, None without one. torn: whether these bytes are what an unfinished write leaves: a part of one frame, or zeros.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._end = 0
        self._check = START
        self._payloads: dict[bytes, tuple[int, int]] = {}  # position and length of the body
        self._commitments: set[bytes] = set()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._waiting_payloads: dict[bytes, bytes] = {}
        self.header: Header
        self.last_step: int = 0
        self.synced_step: int = 0
        self.rounds: list[AppliedRound] = []
        self.pending: list[StoredResult] = []
        self.lost: int = 0
        self.damage: str = ""
        self.largest: int = 0
        self.lost_step: int | None = None
        self.torn: bool = False

    @classmethod
    def create(cls, path: Path, header: Header) -> Self:
        """Create a new file, replacing one with this name; it is not flushed yet.

        Raises OSError, and WireError for a header with values out of range.
        """
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
        """Open a file and read all complete frames. Call `cut` before anything is added.

        Raises OSError, OtherVersion, and WireError if it does not start with a valid header.
        """
        made = cls(io.FileIO(path, "r+", opener=regular))
        try:
            made._load()
        except BaseException:
            made.close()
            raise
        return made

    @classmethod
    def view(cls, file: io.FileIO, *, size: int | None = None, most_frames: int | None = None) -> Self:
        """Read all complete frames of a file that is open for reading. Nothing may be added. The result owns the file.

        size: number of bytes to read, None for all. most_frames: limit for a file from somebody else, since every frame needs
        some memory. Raises OSError, OtherVersion, and WireError for a file without a valid header or over the limit.
        """
        made = cls(file)
        try:
            made._load(size, most_frames)
        except BaseException:
            made.close()
            raise
        return made

    def close(self) -> None:
        """Close the file. Data that is not synced is lost. Idempotent."""
        self._file.close()

    @property
    def size(self) -> int:
        """Length in bytes, including data that is not synced."""
        return self._end + self._waiting_bytes

    @property
    def waiting(self) -> int:
        """Number of bytes that are not synced."""
        return self._waiting_bytes

    def has_payload(self, payload_hash: bytes) -> bool:
        """Whether a payload is in the file, synced or not. payload_hash: its SHA-256."""
        return payload_hash in self._payloads

    def has_result(self, commitment: bytes) -> bool:
        """Whether a result is in the file, synced or not. commitment: the result's, 32 bytes."""
        return commitment in self._commitments

    def payload_size(self, payload_hash: bytes) -> int:
        """Return the length of a payload in bytes. Raises KeyError if it is not in the file."""
        return self._payloads[payload_hash][1]

    def payload(self, payload_hash: bytes) -> bytes:
        """Return a payload's bytes. payload_hash: its SHA-256.

        Raises KeyError if it is not in the file, WireError if its bytes on the disk have changed, OSError.
        """
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
        """Append a payload unless it is already in the file. digest: its SHA-256."""
        if digest not in self._payloads:
            self._payloads[digest] = (self.size + FRAME.size, len(payload))
            self._waiting_payloads[digest] = payload
            self._append(Kind.Payload, payload, digest)

    def add(self, record: StoredResult | AppliedRound) -> None:
        """Append a record. Raises WireError if it cannot be encoded or does not fit; then nothing has changed."""
        body = encode_record(record)
        self._take(record)
        self._append(kind_of(record), body, hashlib.sha256(body).digest())

    def sync(self) -> None:
        """Write all data to the disk that is not synced. Raises OSError; then the file is unchanged, the data still in memory."""
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
                self._file.truncate(self._end)  # otherwise `load` would report these bytes as damage
            raise

        self._end += self._waiting_bytes
        self._waiting, self._waiting_bytes, self._waiting_payloads = [], 0, {}
        self.synced_step = self.last_step

    def drop_waiting(self) -> None:
        """Discard data that is not synced. After this, nothing may be appended."""
        self._waiting, self._waiting_bytes, self._waiting_payloads = [], 0, {}

    def records(self) -> Iterator[StoredResult | AppliedRound]:
        """Yield the synced results and rounds in the order of the file. Raises OSError, WireError."""
        at, check = len(START), START
        while at < self._end:
            self._file.seek(at)
            frame = read_frame(self._file, before=check, left=self._end - at)
            assert frame is not None
            at, check = frame.at + frame.length, frame.check
            if isinstance(frame.record, StoredResult | AppliedRound):
                yield frame.record

    def _load(self, size: int | None = None, most_frames: int | None = None) -> None:
        size = os.fstat(self._file.fileno()).st_size if size is None else size
        start = self._file.read(len(START))
        if start != START:
            message = "another version of this program wrote it"
            raise OtherVersion(message) if start[:-1] == MAGIC else WireError(_DAMAGED)

        try:
            first = read_frame(self._file, before=START, left=size - len(START))
        except WireError as error:
            raise WireError(_DAMAGED) from error

        if first is None or not isinstance(first.record, Header):
            raise WireError(_DAMAGED)

        self._take_header(first.record)
        self._end, self._check = first.at + first.length, first.check
        frames = 0
        try:
            while (frame := read_frame(self._file, before=self._check, left=size - self._end)) is not None:
                if frames == most_frames:
                    break
                self._take_frame(frame)
                self._end, self._check = frame.at + frame.length, frame.check
                self.largest = max(self.largest, FRAME.size + frame.length)
                frames += 1
        except WireError as error:  # a damaged frame and all frames after it are ignored
            self.damage = str(error)
        else:
            if frame is not None:
                message = f"it has more than {most_frames:,} frames"
                raise WireError(message)
        self.lost = size - self._end
        self.synced_step = self.last_step
        if self.lost:
            self._look_at_lost()

    def cut(self) -> None:
        """Remove the bytes after the last complete frame. Raises OSError."""
        if self.lost:
            self._file.truncate(self._end)

    def cut_before(self, step: int) -> None:
        """Remove the synced round of this step and all that was synced after it; this needs no space on the disk.

        The object cannot be used afterwards: close it and `load` the file again. Raises OSError, WireError.
        """
        at, check = len(START), START
        while at < self._end:
            self._file.seek(at)
            frame = read_frame(self._file, before=check, left=self._end - at)
            assert frame is not None
            if isinstance(frame.record, AppliedRound) and frame.record.step >= step:
                self._file.truncate(at)
                os.fsync(self._file.fileno())
                return
            at, check = frame.at + frame.length, frame.check

    def _look_at_lost(self) -> None:
        """Look for rounds in the bytes after the last complete frame, as far as the frames' lengths lead to further frames."""
        at, end = self._end, self._end + self.lost
        self._file.seek(at)
        head = self._file.read(min(FRAME.size, self.lost))
        self.torn = not any(head) or len(head) < FRAME.size or FRAME.size + FRAME.unpack(head)[1] > self.lost
        with contextlib.suppress(WireError):
            while at + FRAME.size <= end:
                self._file.seek(at)
                kind, length, _ = FRAME.unpack(self._file.read(FRAME.size))
                at += FRAME.size + length
                if at > end:
                    break
                if kind == Kind.Applied and length <= MAX_RECORD_BYTES:
                    record = decode_record(Kind.Applied, self._file.read(length))
                    assert isinstance(record, AppliedRound)
                    self.lost_step = max(self.lost_step or 0, record.step)

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
        """Add a record to the indices in memory. Raises WireError if it does not fit the earlier records."""
        for each in named(record):
            if each not in self._payloads:
                message = f"payload {each.hex()[:16]}… of step {record.step} is not in the journal"
                raise WireError(message)

        if isinstance(record, StoredResult):
            self._commitments.add(record.commitment)
            if record.step > self.last_step:
                self.pending.append(record)
        elif record.step != self.last_step + 1:
            message = f"expected step {self.last_step + 1}, got step {record.step}"
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
    """Return the SHA-256 of each payload that a record refers to."""
    return (record.payload_hash,) if isinstance(record, StoredResult) else record.payload_hashes


def header_in(path: Path) -> Header | None:
    """Return the header of a journal's file without reading its records; None if there is none that can be read."""
    try:
        with io.FileIO(path, "r", opener=regular) as file:
            size = os.fstat(file.fileno()).st_size
            if file.read(len(START)) != START:
                return None
            first = read_frame(file, before=START, left=size - len(START))
    except (OSError, WireError):
        return None
    return first.record if first is not None and isinstance(first.record, Header) else None
