"""Event files read back, by the tests' own decoder of protocol buffers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from polyopt.writers.event_file import masked_crc32c


@dataclass
class Event:
    """What a record says."""

    step: int = 0
    version: str = ""
    session: int | None = None
    values: dict[str, float] = field(default_factory=dict)


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: number, and its value as a whole number or as bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = varint() if kind == 2 else {1: 8, 5: 4}[kind]
        yield key >> 3, data[at : at + size]
        at += size


def events(path: Path) -> list[Event]:
    """Every event of a file; fails on a wrong checksum."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        record = data[at + 12 : at + 12 + length]
        assert data[at + 8 : at + 12] == masked_crc32c(data[at : at + 8])
        assert data[at + 12 + length : at + 16 + length] == masked_crc32c(record)
        found.append(event(record))
        at += 16 + length
    return found


def event(record: bytes) -> Event:
    """One record decoded."""
    read = Event()
    for number, value in fields(record):
        if number == 2:
            assert isinstance(value, int)
            read.step = value
        elif number == 3:
            assert isinstance(value, bytes)
            read.version = value.decode()
        elif number == 5:
            assert isinstance(value, bytes)
            for _, scalar in fields(value):
                assert isinstance(scalar, bytes)
                parts = dict(fields(scalar))
                read.values[bytes(parts[1]).decode()] = struct.unpack("<f", bytes(parts[2]))[0]
        elif number == 7:
            assert isinstance(value, bytes)
            read.session = int(dict(fields(value))[1])  # type: ignore[arg-type]
    return read


def points(folder: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard shows of a folder: values by tag and step, after all session starts.

    Fails if a step is there twice.
    """
    shown: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("*tfevents*")):
        for read in events(path):
            if read.session is not None:
                shown = {
                    tag: {s: v for s, v in values.items() if s < read.step}
                    for tag, values in shown.items()
                }
            for tag, value in read.values.items():
                at = shown.setdefault(tag, {})
                assert read.step not in at, (tag, read.step)
                at[read.step] = value
    return {tag: values for tag, values in shown.items() if values}
