"""Numbers as people read them: on the terminal and in the HTML report alike."""

import math


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`."""
    if not math.isfinite(seconds):
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def percent(share: float) -> str:
    """A share of 1 with one decimal, or as many as its first digit needs: `20.8 %`, `0.004 %`, `0 %`."""
    if not math.isfinite(share):
        return "?"
    value = 100 * share
    if value == 0 or abs(value) >= 0.1:
        return f"{value:.1f} %".replace(".0 %", " %")
    return f"{value:.1g} %" if abs(value) >= 1e-4 else "< 0.0001 %"


def count(number: float) -> str:
    """`12,340` up to a million, then `1.25 M`, `3.1 G`."""
    if not math.isfinite(number):
        return "?"
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(number) >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:,.0f}"


def loss(nats: float) -> str:
    """Three decimals; `not finite` where it is not."""
    return f"{nats:.3f}" if math.isfinite(nats) else "not finite"


def size(num_bytes: float) -> str:
    """`512 bytes`, `12.3 kB`, `45.6 MB`, `7.8 GB`."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes:.0f} bytes"
