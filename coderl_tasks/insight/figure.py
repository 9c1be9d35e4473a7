"""One style for all figures. They are drawn without pyplot: there is no global state, and nothing to close.

Text stays text in SVG: small files, the page's own font. Series colours read on white and on near-black.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:  # half a second to import, which a command that starts to train can spend later
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, MUTED, RULE, PAPER = "#1f2430", "#6b7280", "#e3e6ea", "#ffffff"
BLUE, ORANGE, TEAL, ROSE, VIOLET, GREY = "#3f7fd9", "#e08a2c", "#26a08a", "#d9546e", "#8b6fd1", "#9aa3af"
SERIES = (BLUE, ORANGE, TEAL, VIOLET, ROSE, GREY)

THEMED = {INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)", PAPER: "var(--paper)"}

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.titlecolor": INK,
    "axes.labelsize": 8.5,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "axes.linewidth": 1.0,
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left"), False),
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.formatter.limits": (-3, 5),
    "axes.formatter.useoffset": False,  # 1.00002 on an axis and not 2 below a corner's 1e-5+1
    **dict.fromkeys(("grid.color", "xtick.color", "ytick.color"), RULE),
    "grid.linewidth": 0.8,
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), MUTED),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 8.5),
    "ytick.major.size": 0,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 1.1,
    "legend.borderaxespad": 0.0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "figure.facecolor": PAPER,
    "svg.fonttype": "none",
    # Fixed, as the ids in an SVG are hashes with a random salt otherwise: the same data draws the same bytes.
    "svg.hashsalt": "coderl",
    "path.simplify": True,
    # Names come from data: a dollar sign in one is no formula.
    "text.parse_math": False,
}

TOP, BOTTOM, RIGHT = 0.42, 0.5, 0.16
WIDTH, LABELS = 4.6, 1.1
"""Inches: a panel's width, two of which fill a page, and the margin of a panel whose rows are named."""

Draw = Callable[["Axes"], None]


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawn figure and `alt`, one sentence that says what it shows to those who cannot see it."""

    figure: "Figure"
    alt: str

    def inline_svg(self) -> str:
        """SVG to put into a page that defines --ink, --muted, --rule and --paper; transparent, as wide as its place."""
        svg = self.svg(transparent=True)
        for colour, variable in THEMED.items():
            svg = svg.replace(colour, variable)
        head, body = svg.replace("'DejaVu Sans'", "inherit").split(">", 1)
        head = re.sub(r' (width|height)="[^"]*"', "", head)
        return f'{head} role="img" aria-label="{escape(self.alt)}" class="plot">{body}'

    def svg(self, *, transparent: bool = False) -> str:
        """The <svg> element alone: no XML header, no metadata, no ids that clash with those of a second figure."""
        import matplotlib

        buffer = io.BytesIO()
        # No date and no version of matplotlib: the same data draws the same bytes, today and tomorrow.
        metadata = {"Date": None, "Creator": None}
        # The style again: fonts, ids and simplified paths are settled when a figure is saved, not when it is drawn.
        with matplotlib.rc_context(STYLE):
            self.figure.savefig(buffer, format="svg", metadata=metadata, transparent=transparent)
        svg = "<svg" + buffer.getvalue().decode().partition("<svg")[2]
        svg = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
        return re.sub(r"\n\s*", "\n", re.sub(r'<g id="[^"]*"', "<g", svg))


def draw_panels(
    panels: list[Draw],
    columns: int,
    panel_size: tuple[float, float],
    alt: str,
    left: float = 0.6,
    bottom: float = BOTTOM,
    same_heights: bool = False,
) -> Plot:
    """A grid of axes, one drawn on by each of `panels`; sizes and margins are in inches. Margins are fixed: fitting
    them would double the drawing time, during training. With `same_heights` panels with data get the same y limits."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = -(-len(panels) // columns)
    width, height = panel_size[0] * columns, panel_size[1] * rows
    inner_width, inner_height = panel_size[0] - left - RIGHT, panel_size[1] - TOP - bottom
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        for index, draw in enumerate(panels):
            row, column = divmod(index, columns)
            x, y = column * panel_size[0] + left, height - (row + 1) * panel_size[1] + bottom
            draw(figure.add_axes((x / width, y / height, inner_width / width, inner_height / height)))
        filled = [axes for axes in figure.axes if axes.has_data()] if same_heights else []
        limits = [limit for axes in filled for limit in axes.get_ylim()]
        for axes in filled:
            axes.set_ylim(min(limits), max(limits))
    return Plot(figure, alt)


def prepare(axes: "Axes", title: str, metrics: pl.DataFrame | None = None) -> None:
    """The title and, for a panel over steps, the step axis."""
    axes.set_title(title)
    if metrics is not None:
        axes.set_xlabel("step")
        whole_numbers(axes.xaxis, 6)
        if not len(metrics):
            axes.text(0.5, 0.5, "no steps yet", transform=axes.transAxes, ha="center", color=MUTED)


def whole_numbers(axis: "Axis", most: int = 5) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(most, integer=True))


def percentages(axis: "Axis") -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def add_legend(axes: "Axes", columns: int = 3) -> None:
    """A legend in one row under the title's line, out of the data's way."""
    style: dict[str, Any] = {"columnspacing": 0.9, "handletextpad": 0.45, "labelcolor": MUTED}
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=columns, **style)


def short_name(name: str) -> str:
    """A split's name as a label: cut where it would not fit the margin."""
    return name if len(name) <= 15 else f"{name[:14]}…"
