"""Draw the page of a certificate as PDF.

Matplotlib draws it, because the labs need it anyway and it embeds its fonts. Equal facts give equal bytes.
"""

import io

import matplotlib
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from hvdgrade.certificate.facts import Facts, NoCertificate

A4 = (11.69, 8.27)  # inches, landscape
BLUE, GREY = "#1b3a5c", "#5b6670"
SERIF, SANS, MONO = "DejaVu Serif", "DejaVu Sans", "DejaVu Sans Mono"
FONT_TYPE = 42  # TrueType, so that a reader can copy the text
WIDTH = 0.84  # of the page: the widest text
STATEMENT = (
    "An automatic grader ran the submitted training script in a sandbox and measured what it did. "
    "The processes\ntrained one network together, each on its own part of the data, and reached the required "
    "accuracy in time."
)
LEFT, ROW_TOP, ROW_STEP = 0.16, 0.455, 0.037


def draw(facts: Facts, fingerprint: str) -> bytes:
    """Return the page, which names the key that signs it by its `fingerprint`.

    Raises:
        NoCertificate: the font lacks a letter of the name or of the course.
    """
    _check_letters(facts.name, facts.course)
    figure = Figure(figsize=A4)
    for margin, width in ((0.03, 2.0), (0.038, 0.6)):
        across, up = margin * A4[1] / A4[0], margin
        figure.add_artist(
            Rectangle((across, up), 1 - 2 * across, 1 - 2 * up, fill=False, ec=BLUE, lw=width)
        )
    _centred(figure, 0.875, "CERTIFICATE", SERIF, 30, BLUE)
    _centred(figure, 0.805, "This certifies that", SERIF, 13, GREY)
    _centred(figure, 0.725, facts.name, SERIF, 32, "black")
    figure.add_artist(Rectangle((0.25, 0.69), 0.5, 0.0008, fc=BLUE, ec="none"))
    _centred(figure, 0.645, "passed the assessment of the course", SERIF, 13, GREY)
    _centred(figure, 0.59, facts.course, SERIF, 18, BLUE)
    _centred(figure, 0.52, STATEMENT, SANS, 9.5, GREY)
    for number, (label, text) in enumerate(facts.rows):
        height = ROW_TOP - number * ROW_STEP
        _text(figure, (LEFT, height), label, SANS, 9.5, GREY)
        _text(figure, (LEFT + 0.09, height), text, SANS, 9.5, "black", 0.97 - LEFT - 0.09)
    _text(figure, (LEFT, 0.125), f"Issued: {facts.issued}", SANS, 10.5, "black")
    figure.add_artist(Rectangle((0.6, 0.12), 0.24, 0.0008, fc="black", ec="none"))
    _text(figure, (0.6, 0.1), "Instructor", SANS, 9, GREY)
    note = "Verify this file: hvdgrade certificate verify FILE. A printed copy proves nothing."
    _centred(figure, 0.07, f"{note} Key: {fingerprint}", MONO, 7, GREY)
    _centred(figure, 0.055, f"Result: {facts.result_sha256}", MONO, 7, GREY)

    metadata = {"Title": f"Certificate: {facts.name}", "Subject": facts.course}
    metadata |= {"Keywords": f"result-sha256={facts.result_sha256}", "CreationDate": None}
    data = io.BytesIO()
    with matplotlib.rc_context({"pdf.fonttype": FONT_TYPE}):
        figure.savefig(data, format="pdf", metadata=metadata)
    return data.getvalue()


def _centred(figure: Figure, height: float, text: str, font: str, size: float, colour: str) -> None:
    _text(figure, (0.5, height), text, font, size, colour, WIDTH, "center")


def _text(
    figure: Figure,
    place: tuple[float, float],
    text: str,
    font: str,
    size: float,
    colour: str,
    widest: float = 1.0,
    align: str = "left",
) -> Text:
    """Draw a text, smaller if it would be wider than `widest`, and without TeX: a name may contain "$"."""
    drawn = figure.text(*place, text, family=font, size=size, color=colour, ha=align, va="center")
    drawn.set_parse_math(False)
    width = drawn.get_window_extent().width / figure.bbox.width
    if width > widest:
        drawn.set_size(size * widest / width)
    return drawn


def _check_letters(*texts: str) -> None:
    known = FT2Font(font_manager.findfont(SERIF)).get_charmap()
    for text in texts:
        missing = sorted({letter for letter in text if ord(letter) not in known})
        if missing:
            raise NoCertificate(
                f"the font of the certificate lacks {' '.join(missing)} of '{text}': give the text in other "
                "letters, with --name or --course."
            )
