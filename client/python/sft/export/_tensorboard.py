"""TensorBoard's event files, written here: nothing of TensorBoard is needed."""

import os
import pathlib
import struct
import typing

from .._point import Point
from ._scalars import scalars_of, seconds_of

if typing.TYPE_CHECKING:
    from ..job import Job

_HEAD, _FOOT = 12, 4  # length and its checksum; the record's checksum


def _table() -> typing.List[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _table()


def _masked_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", _masked_crc32c(length)) + event + struct.pack("<I", _masked_crc32c(event))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def _member(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _event(time: float, step: int) -> bytes:
    """Event: wall_time = 1 (double), step = 2 (int64)."""
    return b"\x09" + struct.pack("<d", time) + (b"\x10" + _varint(step) if step else b"")


def _single(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _record_of(point: Point) -> bytes:
    # Event.summary = 5 { value = 1 { tag = 1, simple_value = 2 (float) } }
    summary = b"".join(_member(1, _member(1, tag.encode()) + b"\x15" + _single(value))
                       for tag, value in scalars_of(point).items())
    return _record(_event(seconds_of(point["time"]), point["step"]) + _member(5, summary))


def _begin(point: Point) -> bytes:
    """What stands at the start of a file; a later attempt's says from which step on it replaces the earlier ones."""
    time = seconds_of(point["time"])
    begin = _record(_event(time, 0) + _member(3, b"brain.Event:2"))
    if point["attempt"] > 1:
        begin += _record(_event(time, point["step"]) + _member(7, b"\x08\x01"))  # session_log { status: START }
    return begin


class _Writer:
    """The files of a job, one for each attempt."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._attempt = 0
        self._file: typing.Optional[typing.BinaryIO] = None
        # Points up to this time are in the file.
        self._written = 0.0

    def write(self, points: typing.Sequence[Point]) -> None:
        for point in points:
            if point["attempt"] != self._attempt:
                self._open(point)
            if seconds_of(point["time"]) > self._written and self._file is not None:
                self._file.write(_record_of(point))
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, first: Point) -> None:
        self.close()
        self._attempt = first["attempt"]
        self._folder.mkdir(parents=True, exist_ok=True)
        ending = f".attempt-{self._attempt:04}"
        found = sorted(self._folder.glob("events.out.tfevents.*" + ending))
        path = found[0] if found else self._folder / f"events.out.tfevents.{int(seconds_of(first['time'])):010}{ending}"
        self._file = open(path, "a+b")
        records = self._whole_records(self._file)
        self._written = 0.0
        if records > (2 if self._attempt > 1 else 1):
            self._written = self._last_time
        elif records == 0:
            self._file.write(_begin(first))

    def _whole_records(self, file: typing.BinaryIO) -> int:
        """Cuts off one that was not written to its end."""
        file.seek(0)
        records, end, size = 0, 0, os.fstat(file.fileno()).st_size
        while size - end >= _HEAD:
            length = struct.unpack("<Q", file.read(_HEAD)[:8])[0]
            if end + _HEAD + length + _FOOT > size:
                break
            event = file.read(length + _FOOT)
            if event[:1] == b"\x09":
                self._last_time = struct.unpack("<d", event[1:9])[0]
            end += _HEAD + length + _FOOT
            records += 1
        if end < size:
            file.truncate(end)
        file.seek(end)
        return records


def tensorboard(job: "Job", dir: typing.Union[str, "os.PathLike[str]"], live: bool = True) -> str:
    """Writes the curve into event files below dir/JOB, so that `tensorboard --logdir dir` shows several jobs as runs;
    with `live` until the job has ended. Returns the folder. Switch on "Reload data" in TensorBoard to see it grow."""
    folder = pathlib.Path(dir) / job.id
    writer = _Writer(folder)
    try:
        for points, _ in job.batches(live=live):
            writer.write(points)
    finally:
        writer.close()
    return str(folder)
