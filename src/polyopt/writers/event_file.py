"""TensorBoard's event files, written without TensorBoard.

A file is a row of TFRecords (length, its checksum, data, its checksum); each holds one protocol
buffer `Event`. Of that message we need five fields, so they are encoded here: no dependency, tags
exactly as given, and an error of the disk reaches the caller.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from pathlib import Path

FILE_VERSION = "brain.Event:2"
SESSION_START = 1

VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5
"""Wire types of protocol buffers."""


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


CRC_TABLE = _crc_table()


class EventFile:
    """One event file, open for writing; every event is flushed.

    Args:
        path: The file; its name must contain `tfevents` for TensorBoard to find it.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        self._record(_field(3, FILE_VERSION.encode()))

    def session_start(self, step: int) -> None:
        """Tell readers that points at `step` and later, of files before this, no longer hold."""
        self._record(_number(2, step) + _field(7, _number(1, SESSION_START)))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One event with all values of a step."""
        summary = b"".join(
            _field(1, _field(1, tag.encode()) + _key(2, FLOAT) + _float32(value))
            for tag, value in values.items()
        )
        self._record(_number(2, step) + _field(5, summary))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _record(self, event: bytes) -> None:
        data = _key(1, DOUBLE) + struct.pack("<d", time.time()) + event
        length = struct.pack("<Q", len(data))
        self._file.write(length + masked_crc32c(length) + data + masked_crc32c(data))
        self._file.flush()


def masked_crc32c(data: bytes) -> bytes:
    """TFRecord's checksum: CRC-32C, rotated right by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _float32(value: float) -> bytes:
    """A value with 24 bits of mantissa, as event files hold it; infinite beyond 3.4e38."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _varint(value: int) -> bytes:
    """A whole number in groups of seven bits, lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _key(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _number(number: int, value: int) -> bytes:
    return _key(number, VARINT) + _varint(value)


def _field(number: int, data: bytes) -> bytes:
    return _key(number, BYTES) + _varint(len(data)) + data
