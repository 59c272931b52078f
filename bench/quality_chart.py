"""The curves of `bench.quality` as one SVG picture, drawn by the charts of the HTML report."""

from html import escape
from typing import Any

from oarlock.report.html.chart import SIZE, Chart, Level, Series, Tick, chart

WIDTH, HEIGHT = 860, 500
LEFT, TOP, RIGHT, BOTTOM = 60, 116, 24, 62
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
LABELS = {
    "oarlock": "Oarlock",
    "transformers": "transformers",
    "transformers-sparse": "transformers, logits at the targets only",
}
COLOURS = {"oarlock": "#2768d4", "transformers": "#d2570a", "transformers-sparse": "#16784a"}
STYLE = """
  text { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: #5a6575; }
  .title { font-size: 18px; font-weight: 650; fill: #1a2230; }
  .value { font-weight: 650; fill: #1a2230; }
  path { fill: none; stroke: currentColor; vector-effect: non-scaling-stroke; stroke-linejoin: round; }
  .line, .key { stroke-width: 2.5px; }
  .grid { color: #dde2e9; }
  .mark { color: #5a6575; stroke-width: 2px; stroke-dasharray: 2 4; }
  .level { color: #6b7787; stroke-dasharray: 7 5; stroke-width: 1.5px; }
"""


def draw(curves: list[dict[str, Any]]) -> str:
    """Accuracy against minutes of training, and where ours reaches what `transformers` has in the end."""
    by_name = {curve["who"]: curve["curve"] for curve in curves}
    levels, marks = [], []
    if "transformers" in by_name:
        goal = by_name["transformers"][-1]["eval_accuracy"]
        minutes = by_name["transformers"][-1]["seconds"] / 60
        levels = [Level(f"transformers after {minutes:.0f} min", "level", 100 * goal)]
        marks = [p["seconds"] / 60 for p in by_name.get("oarlock", []) if p["eval_accuracy"] >= goal][:1]
    figure = chart(
        f"{curves[0]['model']}: masked accuracy on held-out text",
        "",
        [
            Series(
                LABELS[name],
                name,
                [point["seconds"] / 60 for point in points],
                [100 * point["eval_accuracy"] for point in points],
            )
            for name, points in by_name.items()
        ],
        levels=levels,
        marks=marks,
        marks_label=f"Oarlock is there after {marks[0]:.1f} min" if marks else "",
        show="{:.1f} %".format,
        holds=[0.0],
    )
    return _svg(figure)


def _svg(figure: Chart) -> str:
    """A stand-alone picture of a chart."""
    colours = "".join(f"  .{name} {{ color: {colour}; }}\n" for name, colour in COLOURS.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(figure.title)}</title>",
        f"<style>{STYLE}{colours}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text class="title" x="20" y="30">{escape(figure.title)}</text>',
        *_legend(figure),
        *(_horizontal(tick) for tick in figure.y_ticks),
        *(_below(tick) for tick in figure.x_ticks),
        *(_mark(percent) for percent in figure.marks),
        f'<svg x="{LEFT}" y="{TOP}" width="{PLOT_WIDTH}" height="{PLOT_HEIGHT}" viewBox="0 0 {SIZE} {SIZE}" '
        'preserveAspectRatio="none" overflow="visible">',
        *(
            f'<path class="{shape.kind} {shape.style}" d="{shape.path}"/>'
            for shape in figure.shapes
            if shape.kind == "line"
        ),
        "</svg>",
        f'<text x="{LEFT + PLOT_WIDTH / 2}" y="{HEIGHT - 14}" text-anchor="middle">minutes of training</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _legend(figure: Chart) -> list[str]:
    parts = []
    for i, key in enumerate(figure.keys):
        x, y = 20 + 420 * (i % 2), 54 + 22 * (i // 2)
        stroke = f"M{x + 9} {y - 11}v14" if key.style == "mark" else f"M{x} {y - 4}h18"
        parts.append(f'<path class="key {key.style}" d="{stroke}"/>')
        value = f' <tspan class="value">{escape(key.value)}</tspan>' if key.value else ""
        parts.append(f'<text x="{x + 26}" y="{y}">{escape(key.label)}{value}</text>')
    return parts


def _horizontal(tick: Tick) -> str:
    y = TOP + PLOT_HEIGHT * (1 - tick.percent / 100)
    return (
        f'<path class="grid" d="M{LEFT} {y:.1f}h{PLOT_WIDTH}"/>'
        f'<text x="{LEFT - 8}" y="{y + 5:.1f}" text-anchor="end">{tick.label} %</text>'
    )


def _below(tick: Tick) -> str:
    x = LEFT + PLOT_WIDTH * tick.percent / 100
    return f'<text x="{x:.1f}" y="{TOP + PLOT_HEIGHT + 20}" text-anchor="middle">{tick.label}</text>'


def _mark(percent: float) -> str:
    x = LEFT + PLOT_WIDTH * percent / 100
    return f'<path class="mark" d="M{x:.1f} {TOP}v{PLOT_HEIGHT}"/>'
