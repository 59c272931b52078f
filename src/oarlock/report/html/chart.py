"""Figures as values: paths in a square of SIZE x SIZE and labels by their place in percent.

The template draws the paths as SVG stretched to whatever width there is, and the labels as ordinary text over it, so
that a figure is as legible on a phone as on a desk.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SIZE = 1000
"""Width and height of the coordinate system of the paths."""
MOST_POINTS = 400
"""A series with more is drawn as the mean of as many groups, over the range from their smallest to their largest."""
MOST_DOTS = 40
"""A series with more is drawn as a line only."""


@dataclass(frozen=True)
class Series:
    """Points to draw. A y that is not finite leaves a gap."""

    label: str
    style: str
    """Class in the style sheet, which gives the colour."""
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True)
class Level:
    """A horizontal line at a value."""

    label: str
    style: str
    y: float


@dataclass(frozen=True)
class Tick:
    """A label and its place along the axis."""

    percent: float
    label: str


@dataclass(frozen=True)
class Shape:
    """A path in the coordinate system of SIZE x SIZE."""

    style: str
    kind: str
    """`line`, `dots` or `band`."""
    path: str


@dataclass(frozen=True)
class Key:
    """One entry of the legend."""

    style: str
    label: str
    value: str
    """The last value."""


@dataclass(frozen=True)
class Chart:
    """All the template needs to draw a figure."""

    title: str
    meaning: str
    """What the curve shows and how to read it, in a sentence or two."""
    keys: tuple[Key, ...]
    shapes: tuple[Shape, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[float, ...]
    """Places of vertical lines, in percent of the width."""
    empty: bool
    """Nothing to draw."""


@dataclass(frozen=True)
class Axis:
    """A range of values and how it is laid on the figure."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        low, high, at = (
            (math.log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        )
        return (at - low) / (high - low)


def chart(
    title: str,
    meaning: str,
    series: Sequence[Series],
    *,
    levels: Sequence[Level] = (),
    marks: Sequence[float] = (),
    marks_label: str = "",
    show: Callable[[float], str],
    holds: Sequence[float] = (),
    log: bool = False,
) -> Chart:
    """A figure of `series` over steps; `show` writes a value for the legend.

    `marks` are steps to draw a vertical line at. The vertical axis at least spans the values of `holds`; `log` makes it
    logarithmic, which leaves out what is not positive.
    """
    groups = [_groups(one, log) for one in series]
    drawn = [group for one in groups for group in one if group]
    steps = [x for one in series for x in one.xs]
    if not drawn:
        return Chart(title, meaning, (), (), (), (), (), empty=True)
    x_axis = Axis(min(0.0, *steps), max(1.0, *steps))
    y_axis = _y_axis(drawn, [level.y for level in levels], holds, log)
    shapes = [
        shape for one, points in zip(series, groups, strict=True) for shape in _shapes(one, points, x_axis, y_axis)
    ]
    shapes += [Shape(level.style, "line", f"M0 {_y(y_axis, level.y)}H{SIZE}") for level in levels]
    keys = [Key(one.style, one.label, show(one.ys[-1])) for one in series if one.ys]
    keys += [Key(level.style, level.label, show(level.y)) for level in levels]
    keys += [Key("mark", marks_label, "")] if marks and marks_label else []
    return Chart(
        title=title,
        meaning=meaning,
        keys=tuple(keys),
        shapes=tuple(shapes),
        x_ticks=tuple(Tick(_percent(x_axis, x), _steps_label(x)) for x in _round_values(x_axis, most=5)),
        y_ticks=_y_ticks(y_axis),
        marks=tuple(_percent(x_axis, x) for x in marks if x_axis.low <= x <= x_axis.high),
        empty=False,
    )


@dataclass(frozen=True)
class _Group:
    """Neighbouring points as one."""

    x: float
    mean: float
    smallest: float
    largest: float


def _groups(series: Series, log: bool) -> list[_Group | None]:
    """At most MOST_POINTS groups of points; None where a group has no point that can be drawn."""
    size = -(-len(series.xs) // MOST_POINTS) or 1
    groups: list[_Group | None] = []
    for start in range(0, len(series.xs), size):
        xs = series.xs[start : start + size]
        ys = [y for y in series.ys[start : start + size] if math.isfinite(y) and (y > 0 or not log)]
        groups.append(_Group(sum(xs) / len(xs), sum(ys) / len(ys), min(ys), max(ys)) if ys else None)
    return groups


def _y_axis(groups: Sequence[_Group], levels: Sequence[float], holds: Sequence[float], log: bool) -> Axis:
    """Spans the means and the ranges around them, but for the wildest 2 %, which would flatten all the rest."""
    few = len(groups) // 50
    means = [group.mean for group in groups]
    low = min(*means, sorted(group.smallest for group in groups)[few], *levels, *holds)
    high = max(*means, sorted(group.largest for group in groups)[-1 - few], *levels, *holds)
    if log:
        return Axis(low / 1.3, high * 1.3, log=True)
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return Axis(low if low in holds else low - margin, high + margin)


def _shapes(series: Series, groups: Sequence[_Group | None], x_axis: Axis, y_axis: Axis) -> list[Shape]:
    shapes = []
    runs = _runs(groups)
    if any(group.smallest < group.largest for run in runs for group in run):
        band = ""
        for run in runs:
            upper = [f"{_x(x_axis, group.x)} {_y(y_axis, group.largest)}" for group in run]
            lower = [f"{_x(x_axis, group.x)} {_y(y_axis, group.smallest)}" for group in reversed(run)]
            band += f"M{'L'.join(upper + lower)}Z"
        shapes.append(Shape(series.style, "band", band))
    line = "".join(
        "M" + "L".join(f"{_x(x_axis, g.x)} {_y(y_axis, g.mean)}" for g in run) for run in runs if len(run) > 1
    )
    shapes.append(Shape(series.style, "line", line))
    # A point on its own would be invisible as a line.
    dotted = [group for run in runs if len(groups) <= MOST_DOTS or len(run) == 1 for group in run]
    dots = "".join(f"M{_x(x_axis, group.x)} {_y(y_axis, group.mean)}h0" for group in dotted)
    shapes.append(Shape(series.style, "dots", dots))
    return [shape for shape in shapes if shape.path]


def _runs(groups: Sequence[_Group | None]) -> list[list[_Group]]:
    """The groups between gaps."""
    runs: list[list[_Group]] = [[]]
    for group in groups:
        if group is not None:
            runs[-1].append(group)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _x(axis: Axis, value: float) -> str:
    return f"{SIZE * axis.place(value):.1f}"


def _y(axis: Axis, value: float) -> str:
    # The range around a mean may leave the axis, and is cut off there.
    return f"{SIZE * (1 - min(max(axis.place(value), 0.0), 1.0)):.1f}"


def _percent(axis: Axis, value: float) -> float:
    return round(100 * axis.place(value), 2)


def _y_ticks(axis: Axis) -> tuple[Tick, ...]:
    decades = axis.log and axis.high >= 10 * axis.low
    values = _log_values(axis) if decades else _round_values(axis, most=8)
    return tuple(Tick(_percent(axis, value), _label(value)) for value in values)


def _round_values(axis: Axis, most: int) -> list[float]:
    """At most `most` multiples of 1, 2 or 5 times a power of ten within the axis."""
    rough = (axis.high - axis.low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [round(i * step, 12) for i in range(math.ceil(axis.low / step), math.floor(axis.high / step) + 1)]


def _log_values(axis: Axis) -> list[float]:
    decades = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    for factors in ((1, 2, 5), (1,)):
        values = [factor * 10.0**decade for decade in decades for factor in factors]
        values = [value for value in values if axis.low <= value <= axis.high]
        if len(values) <= 7:
            return values
    return values[:: -(-len(values) // 7)]


def _label(value: float) -> str:
    if value != 0 and abs(value) < 1e-2:
        return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")
    if abs(value) >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value:,.10g}" if abs(value) < 1000 else f"{value:,.0f}"


def _steps_label(step: float) -> str:
    """Short, so that five of them fit on a phone."""
    if step >= 1e6:
        return f"{step / 1e6:g}M"
    return f"{step / 1e3:g}k" if step >= 1e4 else f"{step:,g}"
