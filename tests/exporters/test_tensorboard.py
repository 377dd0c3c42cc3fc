"""The event file against the bytes that TensorBoard 2.21 writes for the same events."""

import io

import pytest

from rlhf_lab.exporters.tensorboard import EventFile, crc32c

TENSORBOARD = (
    "1800000000000000a37f4b22090000000000448f401a0d627261696e2e4576656e743a32aba33345"
    "2e00000000000000c5cb57fa0900000000004a8f4010ac022a200a130a0c6f626a6563746976652f6b6c150000003f0a090a026c72150000"
    "00c08b367c9c36000000000000004f578cef0900000000004a8f4010ac022a280a260a0973616d706c65732f30420d0807120412020801"
    "4203c3a90a4a0a0a060a04746578742002189fdc57"
)


def test_bytes_equal_those_of_the_tensorboard_package():
    file = io.BytesIO()
    events = EventFile(file, 1000.5)
    events.add_scalars(300, 1001.25, {"objective/kl": 0.5, "lr": -2.0})
    events.add_texts(300, 1001.25, {"samples/0": "é\n"})
    assert file.getvalue().hex() == TENSORBOARD


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"123456789", 0xE3069283),  # the check value of CRC-32C
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"", 0),
    ],
)
def test_crc32c(data, expected):
    assert crc32c(data) == expected


def test_values_beyond_float32_become_infinite():
    file = io.BytesIO()
    EventFile(file, 0.0).add_scalars(0, 0.0, {"big": 1e300, "small": -1e300})
    assert b"\x15\x00\x00\x80\x7f" in file.getvalue()
    assert b"\x15\x00\x00\x80\xff" in file.getvalue()
