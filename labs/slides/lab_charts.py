"""A Sphinx extension: the directive `lab-chart` shows a chart of the deck's lab.

    ```{lab-chart} Remaining loss against the learning rate
    :lab: 02_gradient_descent
    :height: 3.6
    ```

The argument is the beginning of the description that the lab gives the chart, `describe(figure, "...")`.
`lab` is the lab that draws it (default: the lab of the deck), and `height` is the height of the chart in
inches (default 3.6); its width is always 10.

The build executes the cell of the lab that draws the chart, and the statements before it that the cell
needs. It measures nothing: in place of `sweep("NAME", ...)` stands the shipped table NAME without its rows,
so the chart shows only the results of the course.
"""

import ast
import base64
import html
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from docutils import nodes
from docutils.parsers.rst import directives
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.docutils import SphinxDirective

LABS = Path(__file__).resolve().parents[1]
WIDTH, HEIGHT = 10.0, 3.6  # inches
CELL = re.compile(r"^# %%", re.MULTILINE)
OF_LEARNERS = "; points: yours"  # in titles of lab 3
SVG = {"svg.hashsalt": "hvdlab"}  # so that a chart that is drawn again is the same file
OF_A_PREDICTION = "workbook.predict", "workbook.result"
FUNCTIONS = ast.FunctionDef, ast.Lambda


class ChartError(SphinxError):
    """A lab has no chart with this description, or the chart needs results of a learner."""


class LabChart(SphinxDirective):
    """The directive `lab-chart`."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"lab": directives.unchanged, "height": float}  # noqa: RUF012  as docutils has it

    def run(self) -> list[nodes.Node]:
        """Return the chart as a picture that is part of the page."""
        lab = LABS / f"{self.options.get('lab', self.env.docname)}.py"
        self.env.note_dependency(str(lab))
        figure, description = draw(lab, self.arguments[0])
        figure.set_size_inches(WIDTH, self.options.get("height", HEIGHT))
        source = base64.b64encode(_svg(figure)).decode()
        image = f'<img alt="{html.escape(description)}" src="data:image/svg+xml;base64,{source}">'
        return [nodes.paragraph("", "", nodes.raw("", image, format="html"))]


def draw(lab: Path, beginning: str) -> tuple[Figure, str]:
    """Draw a chart of a lab with the shipped results only.

    Args:
        lab: path of the lab's source.
        beginning: of the chart's description in the lab.

    Returns:
        the figure, and the whole description.

    Raises:
        ChartError: not exactly one description of the lab begins so, or the statements of the chart fail.
    """
    text = lab.read_text(encoding="utf-8")
    cells = [CELL.sub("#", cell) for cell in _cells(text)]
    drawing = [number for number, cell in enumerate(cells) if _describes(cell, beginning)]
    if len(drawing) != 1:
        raise ChartError(
            f"{lab.name} has {len(drawing)} charts whose description begins with {beginning!r}, and lab-chart"
            " needs one. Copy the first words of its describe(figure, ...)."
        )
    described: list[tuple[Figure, str]] = []
    names = {"describe": lambda figure, text: described.append((figure, text))}
    plt.close("all")
    with _only_the_course(), redirect_stdout(io.StringIO()):
        for statement in _needed(cells, drawing[0]):
            module = ast.fix_missing_locations(ast.Module([_Shipped().visit(statement)], []))
            try:
                exec(compile(module, lab.name, "exec"), names)
            except Exception as error:
                raise ChartError(
                    f"{lab.name}: the chart {beginning!r} cannot be drawn from the shipped results alone: "
                    f"{type(error).__name__}: {error}"
                ) from error
            names["describe"] = lambda figure, text: described.append((figure, text))
    figure, description = described[-1]
    for words in figure.findobj(Text):
        words.set_text(words.get_text().replace(OF_LEARNERS, ""))
    return figure, description


def _svg(figure: Figure) -> bytes:
    file = io.BytesIO()
    with matplotlib.rc_context(SVG):
        figure.savefig(file, format="svg", metadata={"Date": None})
    plt.close(figure)
    return file.getvalue()


def _cells(text: str) -> list[str]:
    starts = [match.start() for match in CELL.finditer(text)]
    return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


def _describes(cell: str, beginning: str) -> bool:
    """Return whether a cell describes a chart with words that begin so."""
    return any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "describe"
        and isinstance(node.args[1], ast.Constant)
        and node.args[1].value.startswith(beginning)
        for node in ast.walk(ast.parse(cell))
    )


def _needed(cells: list[str], last: int) -> list[ast.stmt]:
    """Return the statements of a cell, and those before it that bind the names it needs, in their order."""
    chosen, names = [], set()
    for number in range(last, -1, -1):
        body = ast.parse(cells[number]).body
        # A figure that an earlier cell began needs everything that the cell drew.
        whole = number == last or ("figure" in names and any("figure" in _bound(s) for s in body))
        for statement in reversed(body):
            bound = _bound(statement)
            if whole or bound & names:
                chosen.append(statement)
                if not isinstance(statement, ast.If | ast.For | ast.With | ast.Try):
                    names -= bound
                names |= _loaded(_Shipped().visit(statement))
    return chosen[::-1]


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a lab binds."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(each.asname or each.name).partition(".")[0] for each in statement.names}
    return _names(statement, ast.Store) - _local(statement)


def _loaded(*statements: ast.stmt) -> set[str]:
    """Return the names that some statements, one after the other, read from outside of them."""
    loaded, bound = set(), set()
    for statement in statements:
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) or not any(blocks):
            read = _names(statement, ast.Load) - _local(statement)
        else:  # a loop, a condition or a with block: its head first, which binds the names of a loop
            head = [getattr(statement, name, None) for name in ("iter", "test", "items")]
            heads = [
                each
                for part in head
                for each in (part if isinstance(part, list) else [part])
                if each
            ]
            read = set().union(*(_names(each, ast.Load) - _local(each) for each in heads))
            target = getattr(statement, "target", None)
            inside = _names(target, ast.Store) if target else set()
            read |= set().union(*(_loaded(*block) for block in blocks)) - inside
        loaded |= read - bound
        bound |= _bound(statement)
    return loaded


def _local(node: ast.AST) -> set[str]:
    """Return the names of comprehensions, arguments and variables inside functions."""
    local = set()
    for each in ast.walk(node):
        if isinstance(each, ast.comprehension):
            local |= _names(each.target, ast.Store)
        elif isinstance(each, FUNCTIONS):
            local |= {argument.arg for argument in ast.walk(each) if isinstance(argument, ast.arg)}
            local |= _names(each, ast.Store)
    return local


def _names(node: ast.AST, context: type) -> set[str]:
    return {
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, context)
    }


class _Shipped(ast.NodeTransformer):
    """Replace what a learner adds: no row of `sweep`, no prediction, and no result to compare it with."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        called = ast.unparse(node.func)
        if called == "sweep":
            name = ast.unparse(node.args[0])
            return ast.parse(f"reference({name}).iloc[:0].copy()", mode="eval").body
        return ast.Constant(None) if called in OF_A_PREDICTION else node


@contextmanager
def _only_the_course() -> Iterator[None]:
    """Leave out of legends what has no data, because a learner would add it."""

    def without_nothing(draw: Callable) -> Callable:
        def call(axes: Axes, *args: object, **options: object) -> object:
            drawn = draw(axes, *args, **options)
            for artist in drawn if isinstance(drawn, list) else [drawn]:
                line = artist if hasattr(artist, "get_xdata") else artist.lines[0]
                if line is not None and not _has_points(line.get_xdata()):
                    artist.set_label("_")
            return drawn

        return call

    kept = {name: getattr(Axes, name) for name in ("plot", "errorbar", "axvline")}
    try:
        for name, method in kept.items():
            setattr(Axes, name, without_nothing(method))
        yield
    finally:
        for name, method in kept.items():
            setattr(Axes, name, method)


def _has_points(values: object) -> bool:
    return any(value == value for value in values)  # nan is not equal to itself


def setup(app: Sphinx) -> dict:
    """Add the directive."""
    matplotlib.use("Agg")
    app.add_directive("lab-chart", LabChart)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
