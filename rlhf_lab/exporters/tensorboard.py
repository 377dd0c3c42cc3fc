"""Writer of TensorBoard event files. The tensorboard package has 13 dependencies, and tensorboardX imports torch.

A file is a sequence of records [length uint64][crc(length) uint32][data][crc(data) uint32], little-endian, with masked CRC-32C
as in TensorFlow's record format. The data are protocol buffers (Event, Summary, TensorProto): sequences of
[field number << 3 | wire type][value]. Sources: tensorflow/core/lib/io/record_writer.cc, core/util/event.proto and
core/framework/{summary,tensor}.proto of TensorFlow 2.
"""

import struct
from collections.abc import Mapping
from typing import BinaryIO

VERSION = "brain.Event:2"
_STRING, _TENSOR_CLASS = 7, 2  # DT_STRING, DATA_CLASS_TENSOR


class EventFile:
    """Appends events to a binary file. wall_time: seconds since 1970."""

    def __init__(self, file: BinaryIO, wall_time: float) -> None:
        self._file = file
        self._write_record(_double_field(1, wall_time) + _bytes_field(3, VERSION.encode()))

    def add_scalars(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        """Scalars of one step, in float32."""
        self._write_summary(
            step, wall_time, [_bytes_field(1, name.encode()) + _float_field(2, x) for name, x in values.items()]
        )

    def add_texts(self, step: int, wall_time: float, values: Mapping[str, str]) -> None:
        """Texts of one step, rendered as Markdown."""
        metadata = _bytes_field(1, _bytes_field(1, b"text")) + _varint_field(4, _TENSOR_CLASS)
        shape = _bytes_field(2, _varint_field(1, 1))  # one dimension of size 1
        self._write_summary(step, wall_time, [
            _bytes_field(1, name.encode())
            + _bytes_field(8, _varint_field(1, _STRING) + _bytes_field(2, shape) + _bytes_field(8, text.encode()))
            + _bytes_field(9, metadata)
            for name, text in values.items()
        ])  # fmt: skip

    def _write_summary(self, step: int, wall_time: float, values: list[bytes]) -> None:
        summary = b"".join(_bytes_field(1, value) for value in values)
        self._write_record(_double_field(1, wall_time) + _varint_field(2, step) + _bytes_field(5, summary))

    def _write_record(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        self._file.write(length + _masked_crc(length) + data + _masked_crc(data))


def _varint_field(field: int, value: int) -> bytes:
    return _encode_varint(field << 3) + _encode_varint(value)


def _double_field(field: int, value: float) -> bytes:
    return _encode_varint(field << 3 | 1) + struct.pack("<d", value)


def _bytes_field(field: int, value: bytes) -> bytes:
    return _encode_varint(field << 3 | 2) + _encode_varint(len(value)) + value


def _float_field(field: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # finite in float64, beyond float32
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _encode_varint(field << 3 | 5) + packed


def _encode_varint(value: int) -> bytes:
    """Seven bits per byte, lowest first; the eighth bit is set if more bytes follow. value >= 0."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _make_crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # noqa: PLW2901  Castagnoli polynomial, reversed
        table.append(byte)
    return table


_CRC_TABLE = _make_crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked_crc(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted: CRCs of data that contain CRCs are weak otherwise."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
