"""Draw the concept pictures of the labs: one visual language for all of them.

    picture = Picture(720, 300)
    picture.box(20, 20, 160, 60, "rank 0", BLUE)
    picture.arrow((180, 50), (300, 50), "gradients")
    picture.save("name")

Coordinates and sizes are CSS pixels, from the upper left corner, so a picture appears at the size at which it
was drawn. Letters are at least 12 pixels high. The colours are those of Okabe and Ito (2008), which the
colour-blind can tell apart; no meaning rests on colour alone, so that a picture can be printed in grey.

One colour means one thing in all pictures: blue is data and activations, orange is gradients, green is
weights, purple is optimizer state, yellow is communication, grey is hardware and idle time.
"""

import io
from pathlib import Path

import matplotlib
from matplotlib import patches
from matplotlib.figure import Figure
from PIL import Image

FOLDER = Path(__file__).resolve().parent
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
YELLOW, SKY, GREY, BLACK = "#E69F00", "#56B4E9", "#8A8A8A", "#000000"
SETTINGS = {
    "svg.fonttype": "none",  # words stay words, so that they can be searched and read aloud
    "svg.hashsalt": "hvdlab",  # so that a picture that is drawn again is the same file
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica"],  # the first two have equal widths
}
PIXELS_PER_INCH = 96
POINTS_PER_PIXEL = 72 / PIXELS_PER_INCH
SMALLEST_TEXT = 12  # pixels


def tint(colour: str, strength: float = 0.25) -> tuple[float, float, float]:
    """Return a colour mixed with white, for the inside of a shape.

    Args:
        colour: any colour that matplotlib knows.
        strength: fraction of the colour, 0 to 1. Default 0.25.
    """
    rgb = matplotlib.colors.to_rgb(colour)
    return tuple(1 - strength * (1 - part) for part in rgb)


class Picture:
    """An empty picture.

    Args:
        width: in CSS pixels; 720 fits the width of a notebook.
        height: in CSS pixels.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        matplotlib.rcParams.update(SETTINGS)
        self.figure = Figure(figsize=(width / PIXELS_PER_INCH, height / PIXELS_PER_INCH))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_xlim(0, width)
        self.axes.set_ylim(height, 0)
        self.axes.axis("off")

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 14,
        colour: str = BLACK,
        align: str = "center",
        bold: bool = False,
        rotation: float = 0,
    ) -> None:
        """Write words; `$...$` is a formula and `\\n` starts a line.

        Args:
            x: position of the left end, the middle or the right end, as `align` says.
            y: position of the middle.
            words: what to write.
            size: height of the letters in pixels, at least 12. Default 14.
            colour: colour of the letters. Default black.
            align: "left", "center" or "right". Default "center".
            bold: whether to write in bold. Default False.
            rotation: degrees, counter-clockwise. Default 0.

        Raises:
            ValueError: the letters would be too small to read.
        """
        if size < SMALLEST_TEXT:
            raise ValueError(f"size must be at least {SMALLEST_TEXT} pixels. Received: {size}")
        self.axes.text(
            x,
            y,
            words,
            fontsize=size * POINTS_PER_PIXEL,
            color=colour,
            ha=align,
            va="center",
            fontweight="bold" if bold else "normal",
            rotation=rotation,
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        words: str = "",
        colour: str = GREY,
        *,
        size: float = 14,
        strength: float = 0.25,
        bold: bool = False,
        dashed: bool = False,
        hatch: str | None = None,
        rounded: float = 5,
    ) -> None:
        """Draw a box with words in it.

        Args:
            x: left edge.
            y: upper edge.
            width: of the box.
            height: of the box.
            words: what the box is. Default: nothing.
            colour: of the edge, and tinted of the inside. Default grey.
            size: height of the letters. Default 14.
            strength: of the tint, 0 (white) to 1. Default 0.25.
            bold: whether the words are bold. Default False.
            dashed: whether the edge is dashed, for what is absent or only for a while there. Default False.
            hatch: a pattern of matplotlib, for example "//", that shows a difference in grey print.
            rounded: radius of the corners. Default 5.
        """
        shape = patches.FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle=f"round,pad=0,rounding_size={rounded}",
            facecolor=tint(colour, strength),
            edgecolor=colour,
            linewidth=1.5 * POINTS_PER_PIXEL,
            linestyle="--" if dashed else "-",
            hatch=hatch,
        )
        self.axes.add_patch(shape)
        if words:
            self.text(x + width / 2, y + height / 2, words, size=size, bold=bold)

    def cells(
        self,
        x: float,
        y: float,
        words: list[str],
        colours: list[str] | str = GREY,
        *,
        width: float = 36,
        height: float = 30,
        size: float = 14,
        vertical: bool = False,
    ) -> None:
        """Draw a row (or a column) of equal boxes without gaps, for the parts of a tensor or slots of time.

        Args:
            x: left edge of the first box.
            y: upper edge of the first box.
            words: what each box is; an empty text draws an empty box with a dashed edge.
            colours: one colour for each box, or one for all. Default grey.
            width: of each box. Default 36.
            height: of each box. Default 30.
            size: height of the letters. Default 14.
            vertical: whether the boxes stand one below the other. Default False.
        """
        all_colours = [colours] * len(words) if isinstance(colours, str) else colours
        for number, (word, colour) in enumerate(zip(words, all_colours, strict=True)):
            right, down = (0, number * height) if vertical else (number * width, 0)
            self.box(
                x + right,
                y + down,
                width,
                height,
                word,
                colour if word else GREY,
                size=size,
                strength=0.25 if word else 0,
                dashed=not word,
                rounded=0.01,
            )

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        words: str = "",
        *,
        colour: str = BLACK,
        curve: float = 0,
        both: bool = False,
        dashed: bool = False,
        size: float = 13,
        above: float = 11,
    ) -> None:
        """Draw an arrow, with words next to its middle.

        Args:
            start: where it starts.
            end: where its head is.
            words: what moves along it. Default: nothing.
            colour: of the arrow. Default black.
            curve: how far it bends, as a fraction of its length. Default 0: straight.
            both: whether it has a head at both ends. Default False.
            dashed: whether the line is dashed. Default False.
            size: height of the letters. Default 13.
            above: how far the words are above the middle of the arrow, in pixels. Default 11.
        """
        shape = patches.FancyArrowPatch(
            start,
            end,
            arrowstyle="<|-|>" if both else "-|>",
            mutation_scale=14 * POINTS_PER_PIXEL,
            connectionstyle=f"arc3,rad={curve}",
            color=colour,
            linewidth=2 * POINTS_PER_PIXEL,
            linestyle="--" if dashed else "-",
            shrinkA=0,
            shrinkB=0,
        )
        self.axes.add_patch(shape)
        if words:
            x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
            self.text(x, y - above, words, size=size)

    def line(
        self, points: list[tuple[float, float]], *, colour: str = BLACK, dashed: bool = False
    ) -> None:
        """Draw a line through points.

        Args:
            points: at least two.
            colour: of the line. Default black.
            dashed: whether it is dashed. Default False.
        """
        x, y = zip(*points, strict=True)
        style = "--" if dashed else "-"
        self.axes.plot(x, y, style, color=colour, linewidth=2 * POINTS_PER_PIXEL)

    def plot(self, x: float, y: float, width: float, height: float) -> matplotlib.axes.Axes:
        """Return axes of matplotlib inside the picture, for a curve of a formula.

        Args:
            x: left edge of the area of the curve; its labels need about 50 pixels more on the left.
            y: upper edge.
            width: of the area.
            height: of the area; its labels need about 45 pixels more below.
        """
        place = (
            x / self.width,
            1 - (y + height) / self.height,
            width / self.width,
            height / self.height,
        )
        axes = self.figure.add_axes(place)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=SMALLEST_TEXT * POINTS_PER_PIXEL)
        for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
            label.set_fontsize(13 * POINTS_PER_PIXEL)
        return axes

    def save(self, name: str) -> None:
        """Write `labs/pictures/NAME.svg`, and `NAME.png`, which the notebooks show.

        JupyterLab does not show an SVG file that is embedded in a notebook.

        Args:
            name: lower-case letters, digits and underscores.
        """
        options = {"facecolor": "white", "metadata": {"Date": None}}
        self.figure.savefig(FOLDER / f"{name}.svg", format="svg", **options)
        pixels = io.BytesIO()
        self.figure.savefig(pixels, format="png", dpi=1.5 * PIXELS_PER_INCH, facecolor="white")
        image = Image.open(pixels).convert("RGB").quantize(64)
        image.save(FOLDER / f"{name}.png", optimize=True)
