"""Every picture is shown, described, readable, and what its script draws."""

import ast
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import lab_counts
import numpy as np
import pytest
from matplotlib.image import imread

from hvdlab.course import lab_source

PICTURES = Path(__file__).parents[2] / "labs/pictures"
LEAST_WORDS, SMALLEST_TEXT, WIDEST = 15, 12, 760
FILES = sorted(PICTURES.glob("*.svg"))
each_picture = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
LABS = [lab_source.read(path) for lab in lab_source.labs() for path in (lab.path, *lab.optional)]
each_lab = pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.path.stem)
SIZE = re.compile(r"font(?:-size)?: (?:[a-z0-9]+ )*?([0-9.]+)px")
REDRAW = """
import importlib, pathlib, sys
import drawing
drawing.FOLDER = pathlib.Path(sys.argv[1])
for path in sorted(pathlib.Path.cwd().glob("lab*.py")):
    importlib.import_module(path.stem).draw()
"""


@each_lab
def test_every_picture_of_a_lab_exists_and_is_described(lab):
    for name, alt in lab_counts.count(lab).pictures:
        assert (PICTURES / f"{name}.svg").exists() and (PICTURES / f"{name}.png").exists(), name
        assert len(alt.split()) >= LEAST_WORDS, f"{name}: {alt!r}"
    assert "](pictures/" not in lab_counts.PICTURE.sub("", lab.path.read_text(encoding="utf-8"))


@each_lab
def test_every_figure_that_is_described_has_enough_words(lab):
    for node in ast.walk(ast.parse(lab.path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "describe":
            text = ast.unparse(node.args[1])  # a text with numbers in it is an f-string
            assert len(text.split()) >= LEAST_WORDS, f"line {node.lineno}: {text}"


def test_every_picture_is_shown_by_a_lab():
    shown = {name for lab in LABS for name, _ in lab_counts.count(lab).pictures}
    assert {path.stem for path in FILES} - shown == set()


@pytest.mark.slow
def test_the_pictures_are_what_their_scripts_draw(tmp_path):
    subprocess.run([sys.executable, "-c", REDRAW, tmp_path], cwd=PICTURES, check=True, timeout=300)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == sorted([*(p.name for p in FILES), *(p.name for p in PICTURES.glob("*.png"))])
    changed = [name for name in drawn if not same(tmp_path / name, PICTURES / name)]
    assert changed == [], "draw these again: run the script of their lab in labs/pictures"


def same(one: Path, other: Path) -> bool:
    """Return whether two files show the same picture.

    The points of a contour, and the pixels at the edges of a surface, depend on the last digit, and this on
    the processor. So the extent of each path may differ by a point, and one pixel in a hundred.
    """
    if one.suffix == ".svg":
        (text, paths), (other_text, other_paths) = outline(one), outline(other)
        return text == other_text and np.allclose(paths, other_paths, atol=1)
    left, right = imread(one), imread(other)
    return left.shape == right.shape and (left != right).any(axis=-1).mean() < 0.01


def outline(file: Path) -> tuple[str, list]:
    """Return an SVG file without the points of its paths, and the extent of each path."""
    text, paths = file.read_text(encoding="utf-8"), []

    def extent(path: re.Match) -> str:
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", path[1])]
        x, y = numbers[::2], numbers[1::2]
        paths.append([min(x), max(x), min(y), max(y)] if y else [0, 0, 0, 0])
        return " d="

    return re.sub(r' d="([^"]*)"', extent, text), paths


@each_picture
def test_the_words_of_a_picture_can_be_read(path):
    """Indices and exponents of a formula may be smaller than the words around them."""
    root = ElementTree.parse(path).getroot()
    points = float(root.get("width").removesuffix("pt"))
    assert points == float(root.get("viewBox").split()[2])  # a unit of the picture is a point
    assert points * 96 / 72 <= WIDEST
    texts = [element for element in root.iter() if element.tag.endswith("}text")]
    assert texts
    for element in texts:
        styles = [each.get("style", "") for each in element.iter()]
        sizes = [float(size) for style in styles for size in SIZE.findall(style)]
        words = "".join(element.itertext()).strip()
        assert max(sizes) * 96 / 72 >= SMALLEST_TEXT - 0.01, words
