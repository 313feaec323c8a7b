"""Small pictures as inline SVG: lines over depth on a logarithmic scale, and histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 760, 260, 64, 34, 14
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
ZERO = 1e-16  # what a difference of exactly 0 is drawn at


@dataclass(frozen=True, kw_only=True)
class Line:
    """One series: (x, value) points; `dashed` and a colour of its own for what is not measured on B."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    colour: str = ""


def depth_plot(title: str, lines: Sequence[Line], *, mark: tuple[float, str] | None = None) -> str:
    """Draw values between 1e-16 and the largest over the layer; `mark` is a vertical line with a label."""
    xs = [x for line in lines for x, _ in line.points] or [0.0]
    low_x, high_x = min(xs), max(max(xs), min(xs) + 1)
    values = [v for line in lines for _, v in line.points if math.isfinite(v)]
    top = math.ceil(math.log10(max([*values, 1e-6])))
    bottom = math.log10(ZERO)

    def at_x(x: float) -> float:
        return _LEFT + (x - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - 150)

    def at_y(value: float) -> float:
        value = value if math.isfinite(value) else 10.0**top
        share = (math.log10(max(value, ZERO)) - bottom) / (top - bottom)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)

    parts = [_text(_LEFT, 11, title, size=12)]
    for exponent in range(int(bottom), top + 1, 4):
        y = at_y(10.0**exponent)
        parts.append(_rule(_LEFT, y, _WIDTH - 150, y, "#ddd"))
        parts.append(_text(4, y + 4, "0" if exponent == int(bottom) else f"1e{exponent}"))
    for tick in range(math.ceil(low_x), math.floor(high_x) + 1):
        parts.append(_text(at_x(tick) - 4, _HEIGHT - 18, str(tick)))
    parts.append(_text((_WIDTH - 150) / 2, _HEIGHT - 3, "layer"))
    for number, line in enumerate(lines):
        colour = line.colour or _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{at_x(x):.1f},{at_y(v):.1f}" for x, v in sorted(line.points))
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"{dash}/>')
        if not line.dashed:
            parts += [
                f'<circle cx="{at_x(x):.1f}" cy="{at_y(v):.1f}" r="2.5" fill="{colour}"/>'
                for x, v in line.points
            ]
        y = _TOP + 16 * (number + 1)
        parts.append(_rule(_WIDTH - 140, y - 4, _WIDTH - 122, y - 4, colour, extra=dash))
        parts.append(_text(_WIDTH - 118, y, line.name))
    if mark is not None:
        x = at_x(mark[0])
        parts.append(_rule(x, _TOP, x, _HEIGHT - _BOTTOM, "#d62728"))
        parts.append(_text(x + 3, _TOP + 10, mark[1], colour="#d62728"))
    return _svg(parts, _WIDTH, _HEIGHT)


def histogram(title: str, counts: Sequence[int], low: float, high: float) -> str:
    """Draw counts of equal bins between low and high; bars are on a logarithmic scale."""
    width, height = 360, 150
    tallest = max([math.log1p(count) for count in counts] or [1.0]) or 1.0
    step = (width - 20) / max(len(counts), 1)
    bars = []
    for index, count in enumerate(counts):
        size = math.log1p(count) / tallest * (height - 50)
        bars.append(
            f'<rect x="{10 + index * step:.1f}" y="{height - 24 - size:.1f}" '
            f'width="{step * 0.9:.1f}" height="{size:.1f}" fill="#1f77b4"/>'
        )
    labels = [_text(10, 12, title, size=12), _text(10, height - 8, f"{low:.4g}")]
    labels.append(_text(width - 70, height - 8, f"{high:.4g}"))
    return _svg([*bars, *labels], width, height)


def _svg(parts: Sequence[str], width: int, height: int) -> str:
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif">{body}</svg>'
    )


def _text(x: float, y: float, text: str, *, size: int = 10, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}">{escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str, *, extra: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{extra}/>'
    )
