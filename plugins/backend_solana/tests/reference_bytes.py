"""An account of the other implementation, written byte by byte at the documented offsets."""

from __future__ import annotations

import struct

from psyche_backend_solana.layouts import reference


def account() -> bytearray:
    data = bytearray(reference.ACCOUNT_BYTES)
    data[:8] = reference.ACCOUNT_MAGIC

    def put(at: int, content: bytes) -> None:
        data[at : at + len(content)] = content

    put(8, struct.pack("<Q", 1))
    put(16, b"Consilience")
    put(80, b"forty billion")
    put(360, struct.pack("<QQ", 40_000_000_000, 129_280))
    put(376, b"consilience-40b")
    data[408] = 3
    put(416, struct.pack("<I", 0))
    llm = 424
    put(llm, struct.pack("<III", 2048, 100, 1))
    put(llm + 12, struct.pack("<I", 3) + b"\1" + b"main".ljust(64, b"\0") + b"owner/model".ljust(64, b"\0"))
    put(llm + 148, struct.pack("<I", 0))
    put(llm + 152, struct.pack("<II", 3, 1) + b"https://x/{}.ds".ljust(64, b"\0") + struct.pack("<IBxxxI", 5, 4, 20))
    put(llm + 156 + 260, struct.pack("<II", 1, 1) + b"\7" * 32)
    put(llm + 456, struct.pack("<IxxxxdddII", 2, 4e-4, 1e-5, 4e-5, 500, 25_000))
    put(llm + 512, struct.pack("<IIfIffHH?", 2, 1, 1.0, 0, 0.0, 0.999, 8, 64, True))
    put(968, struct.pack("<QQQQQQIHHHHHBB", 600, 30, 60, 10, 1_000, 7_200, 25_000, 32, 30, 8, 256, 512, 0, 3))
    put(1032, struct.pack("<HxxIQ", 7, 1_234, 99_000))
    put(57_496, b"s" * 32 + b"p" * 32 + struct.pack("<BxxxI", 1, 12))
    put(75_928, struct.pack("<Q", 1))
    put(94_408, struct.pack("<QB", 1_750_000_000, 1))
    put(94_424, b"s" * 32 + b"p" * 32 + bytes(8) + struct.pack("<QQQ", 5, 1, 9))
    put(94_520, b"t" * 32 + b"q" * 32 + bytes(8) + struct.pack("<QQQ", 6, 0, 8))
    put(119_000, struct.pack("<Q", 2))
    put(119_008, struct.pack("<QQQQQ", 9, 100, 10, 200, 20))
    put(119_050, b"sha256:abc")
    put(119_152, struct.pack("<Q", 777))
    return data
