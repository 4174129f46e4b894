"""A small player that shows step by step what ranks did: their messages, their arrays, and where they wait.

    Player("My ring", steps)                    # the last line of a cell shows it; it needs no kernel
    Player("My ring", steps).write("ring.html")  # a page for a browser

`player.html` draws the steps. It needs no library and no network.
"""

import html
import json
from dataclasses import asdict, dataclass
from pathlib import Path

TEMPLATE = Path(__file__).with_name("player.html")


@dataclass(frozen=True)
class Message:
    """A message from one rank to another.

    Args:
        start: the position of its first value in the array of the sender. None if it is not known.
        into: the first position at which it changed the array of the receiver. None if it changed nothing.
        length: the number of its values.
        label: its values as a short text.
        wrong: whether it changed the array at another position than `start`.
    """

    sender: int
    receiver: int
    start: int | None
    into: int | None
    length: int
    label: str
    wrong: bool


@dataclass(frozen=True)
class Waiting:
    """Where a rank was when its run was ended.

    Args:
        state: for example "rank 0 waits in line 4".
        code: the lines of the function.
        line: the index of its line in `code`. None if it is not known.
    """

    state: str
    code: tuple[str, ...]
    line: int | None


@dataclass(frozen=True)
class Step:
    """A step: one sentence for each fact, and what is drawn.

    Args:
        title: for example "Step 3 of 6".
        sentences: what happened. A screen reader reads them.
        arrays: for each rank the values after the step, as texts.
        messages: of this step.
        wrong: for each rank the positions with a wrong value.
        waiting: where the ranks wait, if nothing moves any more.
    """

    title: str
    sentences: tuple[str, ...]
    arrays: tuple[tuple[str, ...], ...] = ()
    messages: tuple[Message, ...] = ()
    wrong: tuple[tuple[int, ...], ...] = ()
    waiting: tuple[Waiting, ...] = ()


@dataclass(frozen=True)
class Player:
    """Steps that a reader can move through with a slider, buttons and keys.

    Args:
        chunks: the first position of each chunk of the arrays, and their length at the end.
        note: a sentence below the drawing.
    """

    title: str
    steps: tuple[Step, ...]
    chunks: tuple[int, ...] = ()
    note: str = ""

    def page(self) -> str:
        """Return a page that needs no other file."""
        data = json.dumps(asdict(self)).replace("<", "\\u003c")  # code may contain </script>
        page = TEMPLATE.read_text(encoding="utf-8")
        return page.replace("TITLE", html.escape(self.title)).replace("null; // STEPS", f"{data};")

    def write(self, path: str | Path) -> None:
        """Write the page to a file."""
        Path(path).write_text(self.page(), encoding="utf-8")

    def _repr_html_(self) -> str:
        """Return a frame whose script has no access to the notebook. It is higher where it is narrow."""
        low, high = (560, 800) if self.chunks else (460, 740)
        height = f"height:{high}px;height:clamp({low}px, (551px - 100cqw) * 999, {high}px)"
        return (
            f'<div style="container-type:inline-size"><iframe title="{html.escape(self.title)}" '
            f'sandbox="allow-scripts" style="width:100%;max-width:1000px;border:0;{height}" '
            f'srcdoc="{html.escape(self.page())}"></iframe></div>'
        )
