import math

import pytest

from oarlock.report import formats


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (273_600, "3 d 4 h"),
        (math.nan, "?"),
    ],
)
def test_duration(seconds, text):
    assert formats.duration(seconds) == text


@pytest.mark.parametrize(
    "share, text",
    [
        (0, "0 %"),
        (0.208, "20.8 %"),
        (1, "100 %"),
        (0.001, "0.1 %"),
        (0.00004, "0.004 %"),
        (1e-9, "< 0.0001 %"),
        (math.nan, "?"),
    ],
)
def test_percent(share, text):
    assert formats.percent(share) == text


@pytest.mark.parametrize(
    "number, text",
    [(0, "0"), (999_999, "999,999"), (1_250_000, "1.25 M"), (3.1e9, "3.1 G"), (2e13, "20 T"), (math.nan, "?")],
)
def test_count(number, text):
    assert formats.count(number) == text


def test_loss():
    assert formats.loss(4.82) == "4.820"
    assert formats.loss(math.nan) == "not finite"


@pytest.mark.parametrize("size, text", [(0, "0 bytes"), (999, "999 bytes"), (12_345, "12.3 kB"), (2**40, "1.1 TB")])
def test_size(size, text):
    assert formats.size(size) == text
