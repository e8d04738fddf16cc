"""How all figures look: fonts, colours that colour-blind readers can tell apart, the caption below.

Colours are those of Okabe and Ito. What has a meaning in several figures has one colour in all.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLACK, GREY, PALE = "#000000", "#8a8f98", "#d9dce1"
BLUE, SKY, GREEN = "#0072b2", "#56b4e9", "#009e73"
ORANGE, VERMILLION, PURPLE = "#e69f00", "#d55e00", "#cc79a7"

OURS, STOCK = BLUE, VERMILLION
# Of each cell: colour and marker.
CELLS = {"RNN": (BLUE, "o"), "GRU": (VERMILLION, "s"), "LSTM": (GREEN, "^")}
# The parts of a training step; "rest" is whatever the optimizer is not.
PARTS = {"forward": SKY, "backward": BLUE, "optimizer": GREY, "rest": GREY}
SCANNED = "viridis_r"  # maps of speed-ups; what is left to PyTorch is PALE

COMPUTED = "computed, not measured"  # the caption of what no machine was needed for
DPI = 130
SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "figure.titlesize": 12,
    "axes.titlesize": 11,
    "axes.prop_cycle": f"cycler('color', {[BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK]})",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "legend.fontsize": 9,
    # A figure of the same numbers is the same file, with its own glyphs.
    "svg.hashsalt": "bppsa_lightning",
    "svg.fonttype": "path",
    "path.simplify_threshold": 0.5,
}
# What would differ from one drawing to the next is left out of the files.
METADATA: dict[str, dict[str, None]] = {".png": {"Software": None}, ".svg": {"Date": None}}


def caption(figure: "Figure", text: str) -> None:
    """Writes a line below everything else on the figure, which keeps its layout from then on.

    The line is outside the figure's area: save it with `bbox_inches="tight"`.
    """
    figure.draw_without_rendering()  # so that all is where it will be
    figure.set_layout_engine("none")
    for legend in figure.legends:
        if legend.get_bbox_to_anchor() is figure.bbox:  # which becomes what is saved
            legend.set_bbox_to_anchor((0, 0, 1, 1), figure.transFigure)
    box = figure.get_tightbbox()  # inches
    width, height = figure.get_size_inches()
    figure.text(box.x0 / width, (box.y0 - 0.08) / height, text, fontsize=8, color="0.35", va="top")


def times(ratio: float) -> str:
    """A speed-up in as few digits as tell it: 0.97×, 2.7×, 28×, 1,242×."""
    digits = 2 if ratio < 0.995 else 1 if ratio < 9.95 else 0
    return f"{ratio:,.{digits}f}×"
