"""A page of plots, complete in itself, and a picture of its beginning, from the lines that gz-perf
writes (each with the key peer that perf/report adds)."""
import html
import math
import statistics

from tables import select

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 30, 44
SERIES = {  # what is drawn, and how: by series and what tells its rows apart
    "guozhuang, private memory": ("#0072b2", {"series": "guozhuang", "memory": "private"}),
    "guozhuang, arena": ("#009e73", {"series": "guozhuang", "memory": "arena"}),
    "guozhuang, shared in place": ("#56b4e9", {"series": "guozhuang", "memory": "shared"}),
    "MPI as it comes": ("#999999", {"series": "mpi", "peer": "default"}),
    "MPI tuned": ("#d55e00", {"series": "mpi", "peer": "tuned"}),
    "Gloo": ("#cc79a7", {"series": "gloo", "peer": "gloo"}),
    "guozhuang, on a device": ("#000000", {"series": "guozhuang", "memory": "device"}),
    "staging by hand": ("#e69f00", {"series": "staged", "peer": "staged"}),
    "NCCL": ("#76b900", {"series": "nccl", "peer": "staged"}),
    "bound of the path": ("#444444", {"series": "bound", "peer": "staged"}),
}
STYLE = """
body {
  font: 15px/1.45 system-ui, sans-serif; color: #222; background: #fff;
  max-width: 980px; margin: 2em auto; padding: 0 1em;
}
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin: 2em 0 .3em; }
p { margin: .3em 0 .8em; color: #444; }
svg { font: 11px system-ui, sans-serif; } .row { display: flex; flex-wrap: wrap; gap: 12px; }
.legend span { margin-right: 1.2em; white-space: nowrap; }
.legend i {
  display: inline-block; width: 1.2em; height: .35em; margin-right: .4em; vertical-align: middle;
}
"""


def bounds(rows):
    """Of what the library has measured on devices, as rows of a series: the times in which the path
    that it took could have moved its bytes."""
    for row in rows:
        bound_us = row.get("paths", {}).get(row.get("path"), {}).get("bound_us")
        if bound_us and row["kind"] == "sweep":
            bandwidth = row["busbw_GBps"] * row["p50_us"] / bound_us
            yield row | {"series": "bound", "p50_us": bound_us, "busbw_GBps": bandwidth}
        elif bound_us:
            yield row | {"series": "bound", "step_p50_ms": bound_us / 1000}


def medians(rows, by, value):
    """(by, median of value) for each value of `by`, ascending."""
    found = {}
    for row in rows:
        found.setdefault(row[by], []).append(row[value])
    return sorted((key, statistics.median(values)) for key, values in found.items())


def size(count):
    for unit in ("", "K", "M", "G"):
        if count < 1024:
            return f"{count:.0f}{unit}"
        count /= 1024
    return f"{count:.0f}T"


def number(value):
    return f"{value:.0f}" if value >= 10 else f"{value:g}"


class Axis:
    """A logarithmic axis over the values, from a power of the base to another, in pixels from `low`
    to `high`."""

    def __init__(self, values, low, high, base, text):
        self.first, self.last = (
            math.floor(math.log(min(values), base) + 1e-9),
            math.ceil(math.log(max(values), base) - 1e-9),
        )
        self.low, self.high, self.base, self.text = low, high, base, text

    def at(self, value):
        span = max(self.last - self.first, 1)
        return self.low + (math.log(value, self.base) - self.first) / span * (self.high - self.low)

    def ticks(self):
        """At most eight powers of the base."""
        exponents = range(self.first, self.last + 1)
        step = max(1, math.ceil(len(exponents) / 8))
        return [
            (self.at(self.base**exponent), self.text(self.base**exponent))
            for exponent in exponents[::step]
        ]


def line_chart(title, x_name, y_name, lines, x_base, x_text):
    """`lines`: name -> (colour, [(x, y)]). Both axes are logarithmic."""
    lines = {name: (colour, points) for name, (colour, points) in lines.items() if points}
    if not lines:
        return ""
    points = [point for _, each in lines.values() for point in each]
    x = Axis([p[0] for p in points], LEFT, WIDTH - RIGHT, x_base, x_text)
    y = Axis([p[1] for p in points], HEIGHT - BOTTOM, TOP, 10, number)
    parts = [f'<text x="{LEFT}" y="16" font-weight="600">{html.escape(title)}</text>']
    for at, text in x.ticks():
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" '
            f'stroke="#e5e5e5"/>'
        )
        parts.append(
            f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{text}</text>'
        )
    for at, text in y.ticks():
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" '
            f'stroke="#e5e5e5"/>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 8}" text-anchor="middle" fill="#555">'
        f'{html.escape(x_name)}</text>'
    )
    parts.append(
        f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle" '
        f'fill="#555">{html.escape(y_name)}</text>'
    )
    for name, (colour, each) in lines.items():
        path = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in each)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2">'
            f'<title>{html.escape(name)}</title></polyline>'
        )
        for a, b in each:
            tip = html.escape(f"{name}: {x_text(a)}, {b:.3g}")
            parts.append(
                f'<circle cx="{x.at(a):.1f}" cy="{y.at(b):.1f}" r="2.5" fill="{colour}">'
                f'<title>{tip}</title></circle>'
            )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">'
        f'{"".join(parts)}</svg>'
    )


def bar_chart(title, bars):
    """`bars`: (name, colour, value in ms)."""
    height, label, room = 20, 200, 60
    longest = max(value for _, _, value in bars)
    parts = [f'<text x="0" y="16" font-weight="600">{html.escape(title)}</text>']
    for i, (name, colour, value) in enumerate(bars):
        top, width = 26 + i * height, value / longest * (WIDTH - label - room)
        parts.append(
            f'<text x="{label - 6}" y="{top + 13}" text-anchor="end">{html.escape(name)}</text>'
        )
        parts.append(
            f'<rect x="{label}" y="{top + 2}" width="{width:.1f}" height="{height - 5}" '
            f'fill="{colour}"/>'
        )
        parts.append(f'<text x="{label + width + 5:.1f}" y="{top + 13}">{value:.3g} ms</text>')
    total = 32 + len(bars) * height
    return (
        f'<svg viewBox="0 0 {WIDTH} {total}" width="{WIDTH}" height="{total}" role="img">'
        f'{"".join(parts)}</svg>'
    )


def colours(rows):
    """By name, of the series that were measured."""
    measured = [row for row in rows if row["kind"] != "unavailable"]
    return {name: colour for name, (colour, keys) in SERIES.items() if select(measured, **keys)}


def legend(rows):
    entries = (
        f'<span><i style="background:{colour}"></i>{html.escape(name)}</span>'
        for name, colour in colours(rows).items()
    )
    return f'<p class="legend">{"".join(entries)}</p>'


def lines_over(rows, by, value):
    return {
        name: (colour, medians(select(rows, **keys), by, value))
        for name, (colour, keys) in SERIES.items()
    }


def sweep_charts(rows, ranks):
    here = select(rows, kind="sweep", ranks=ranks)
    moving = [row for row in here if row["bytes"] >= 1024]  # below, a bandwidth says nothing
    yield line_chart(
        f"allreduce, {ranks} ranks: time", "bytes", "us",
        lines_over(here, "bytes", "p50_us"), 2, size,
    )
    yield line_chart(
        f"allreduce, {ranks} ranks: bus bandwidth", "bytes", "GB/s",
        lines_over(moving, "bytes", "busbw_GBps"), 2, size,
    )


def replay_chart(rows, name, ranks):
    here = select(rows, kind="replay", set=name, ranks=ranks)
    bars = []
    for label, (colour, keys) in SERIES.items():
        if keys["series"] in ("guozhuang", "bound"):
            bars += [
                (label, colour, value)
                for _, value in medians(select(here, **keys), "series", "step_p50_ms")
            ]
            continue
        series = keys["series"]
        ways = [
            row
            for row in select(here, peer=keys["peer"])
            if row["series"].startswith(f"{series}_")
        ]
        for way, value in medians(ways, "series", "step_p50_ms"):
            bars.append((
                f"{label}, {way.removeprefix(f'{series}_').replace('_', ' ')}", colour, value
            ))
    return bar_chart(f"{name}, {ranks} ranks: one step's gradients", bars)


def ranks_charts(rows):
    sweep = select(rows, kind="sweep")
    if len({row["ranks"] for row in sweep}) < 2:
        return
    for count in (4, 1 << 20, 16 << 20):
        yield line_chart(
            f"allreduce of {size(count)} bytes: time", "ranks", "us",
            lines_over(select(sweep, bytes=count), "ranks", "p50_us"), 2, number,
        )


def row_of(charts):
    return f'<div class="row">{"".join(charts)}</div>'


def side_by_side(charts, names, columns=2):
    """One SVG of all the charts, with the names of the colours below."""
    width, below = columns * (WIDTH + 12) - 12, -(-len(charts) // columns) * HEIGHT
    parts = [
        chart.replace(
            "<svg", f'<svg x="{i % columns * (WIDTH + 12)}" y="{i // columns * HEIGHT}"', 1
        )
        for i, chart in enumerate(charts)
    ]
    each = max(width // max(len(names), 1), 150)
    for i, (name, colour) in enumerate(names.items()):
        left, top = 20 + i % (width // each) * each, below + 6 + i // (width // each) * 18
        parts.append(f'<rect x="{left}" y="{top}" width="14" height="5" fill="{colour}"/>')
        parts.append(f'<text x="{left + 20}" y="{top + 7}">{html.escape(name)}</text>')
    height = below + 6 + 18 * -(-len(names) // (width // each))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">'
    )
    return f'{head}<rect width="{width}" height="{height}" fill="#fff"/>{"".join(parts)}</svg>\n'


def picture(rows):
    """The plots over sizes for the fewest ranks, as one SVG."""
    charts = sweep_charts(rows, min(row["ranks"] for row in select(rows, kind="sweep")))
    return side_by_side([*charts], colours(rows))


def page(rows, about):
    """HTML. `about` says where and how often it was measured."""
    rows = [*rows, *bounds(rows)]
    all_ranks = sorted({row["ranks"] for row in select(rows, kind="sweep")})
    replays = sorted({(row["set"], row["ranks"]) for row in select(rows, kind="replay")})
    over_ranks = [chart for chart in ranks_charts(rows) if chart]
    body = [
        f"<h1>guozhuang beside its peers</h1><p>{html.escape(about)} Medians; less time and more "
        f"bandwidth are better. Point at a mark to read it.</p>",
        legend(rows),
    ]
    body.append("<h2>Over sizes</h2>")
    body += [row_of(sweep_charts(rows, ranks)) for ranks in all_ranks]
    body.append(
        "<h2>The gradients of real models</h2><p>Of one training step, in the order of backward, "
        "without any compute. Peers: one call per tensor, bundles of 25 MB with copies, or one "
        "flat buffer.</p>"
    )
    body.append(row_of(replay_chart(rows, name, ranks) for name, ranks in replays))
    if over_ranks:
        body.append(
            "<h2>Over ranks</h2><p>On one host; more ranks than cores share them.</p>"
            + row_of(over_ranks)
        )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<title>guozhuang beside its peers</title><style>{STYLE}</style>'
        f'<body>{"".join(body)}</body></html>\n'
    )
