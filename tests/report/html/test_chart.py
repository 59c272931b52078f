import math
import re

import pytest

from oarlock.report.html.chart import MOST_POINTS, SIZE, Axis, Level, Series, chart


def draw(*series, **options):
    return chart("Loss", "lower is better", series, show="{:.2f}".format, **options)


def series(ys, xs=None, **options):
    return Series("training", "train", xs or list(range(1, len(ys) + 1)), ys, **options)


def shapes(figure, kind):
    return [shape.path for shape in figure.shapes if shape.kind == kind]


def points(path):
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


def test_a_line_goes_from_the_first_to_the_last_point():
    figure = draw(series([3.0, 2.0, 1.0], xs=[0, 50, 100]), holds=[0.0])
    (line,) = shapes(figure, "line")
    (left, top), middle, (right, bottom) = points(line)
    assert (left, right) == (0.0, SIZE)
    assert 0 < top < middle[1] < bottom < SIZE
    assert middle[0] == SIZE / 2


def test_a_single_point_is_a_dot():
    figure = draw(series([3.0], xs=[10]))
    assert shapes(figure, "line") == []
    assert len(points(shapes(figure, "dots")[0])) == 1
    assert figure.y_ticks


@pytest.mark.parametrize("ys", [[], [math.nan], [math.inf, math.nan]])
def test_nothing_to_draw(ys):
    assert draw(series(ys)).empty


def test_a_value_that_is_not_finite_leaves_a_gap():
    figure = draw(series([3.0, 2.9, math.nan, 2.7, 2.6]))
    (line,) = shapes(figure, "line")
    assert line.count("M") == 2
    assert len(points(line)) == 4


def test_a_long_series_is_drawn_as_means_over_its_range():
    ys = [1.0 + i % 2 for i in range(100_000)]
    ys[50_000] = 40.0
    figure = draw(series(ys))
    (line,), (band,) = shapes(figure, "line"), shapes(figure, "band")
    assert MOST_POINTS / 2 < len(points(line)) <= MOST_POINTS
    assert len(points(band)) == 2 * len(points(line))
    assert min(y for _, y in points(band)) == 0.0, "the spike reaches the top of the figure"
    assert max(len(shape.path) for shape in figure.shapes) < 20_000


def test_the_axis_spans_the_range_around_the_means():
    ys = [1.0 if i % 2 else 3.0 for i in range(10_000)]
    (band,) = shapes(draw(series(ys)), "band")
    assert {y for _, y in points(band)}.isdisjoint({0.0, float(SIZE)}), "nothing is cut off"


def test_few_points_are_marked():
    assert shapes(draw(series([3.0, 2.0, 1.0])), "dots")
    assert not shapes(draw(series([2.0] * 100)), "dots")


def test_levels_and_marks():
    figure = draw(
        series([8.0, 5.0], xs=[1, 100]),
        levels=[Level("unigram baseline", "baseline", 6.5)],
        marks=[50, 1000],
        marks_label="resumed",
    )
    assert [(key.label, key.value) for key in figure.keys] == [
        ("training", "5.00"),
        ("unigram baseline", "6.50"),
        ("resumed", ""),
    ]
    assert figure.marks == (50.0,), "a mark beyond the last step is left out"


def test_a_logarithmic_axis_leaves_out_what_is_not_positive():
    figure = draw(series([1.0, 0.0, 10.0, 100.0]), log=True)
    (line,) = shapes(figure, "line")
    assert len(points(line)) == 2
    assert {"1", "10", "100"} <= {tick.label for tick in figure.y_ticks}


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("low, high", [(0.97, 1.03), (4.6, 8.3), (1e-9, 3e-3), (0.4, 9e5), (3.0, 3.0), (1.0, 1e8)])
def test_ticks_are_few_distinct_and_in_place(low, high, log):
    figure = draw(series([low, high]), log=log)
    labels = [tick.label for tick in figure.y_ticks]
    assert 2 <= len(labels) <= 9
    assert len(set(labels)) == len(labels)
    assert all(0 <= tick.percent <= 100 for tick in figure.y_ticks)
    assert max(len(label) for label in labels) <= 9


@pytest.mark.parametrize("steps", [1, 7, 60, 2000, 123_456, 5_000_000])
def test_ticks_of_steps(steps):
    labels = [tick.label for tick in draw(series([2.0, 1.0], xs=[1, steps])).x_ticks]
    assert labels[0] == "0"
    assert 2 <= len(labels) <= 6
    assert max(len(label) for label in labels) <= 5


def test_axis():
    assert Axis(10.0, 20.0).place(15.0) == 0.5
    assert Axis(1.0, 100.0, log=True).place(10.0) == pytest.approx(0.5)
