"""A Sphinx extension: write the pages with a player of steps that slides show in a frame."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
from sphinx.application import Sphinx
from sphinx.errors import SphinxError

from hvdlab import schedules
from hvdlab.course.experiment import reference
from hvdlab.course.player import Player
from hvdlab.exercises.lab03_noise_ball_player import examples, show_noise_ball
from hvdlab.exercises.lab03_stochastic_gradient_descent import descend, noise_variance
from hvdlab.exercises.lab04_data_parallelism import ring_all_reduce
from hvdlab.exercises.lab04_ring_player import show_ring
from hvdlab.exercises.lab05_negotiation_player import show_negotiation
from hvdlab.exercises.lab07_growth_player import show_growth


def noise_ball() -> Player:
    """Return the path of SGD around the minimum, from the solutions of lab 3."""
    player = show_noise_ball(descend, noise_variance, *examples())
    return replace(player, note=f"{player.note} Both functions are the solutions of the exercises.")


def ring() -> Player:
    """Return the messages of the ring all-reduce of lab 4, from a run of the solution on four ranks."""
    return show_ring(ring_all_reduce)


def negotiation() -> Player:
    """Return the events of the recorded training step of lab 5."""
    player = show_negotiation(pd.read_csv(Path(__file__).with_name("negotiation.csv"), comment="#"))
    return replace(player, note=f"{player.note} Recorded with PyTorch on two ranks of one machine.")


def growing_batch() -> Player:
    """Return the runs of lab 7 that the course ships."""
    plans = {
        "lower the rate": schedules.batch_growth(10, [3, 6], 5, 64, 64, 0.01),
        "grow the batch": schedules.batch_growth(10, [3, 6], 5, 64, 64 * 25, 0.01),
    }
    player = show_growth(reference("batch_growth"), plans)
    return replace(player, note=f"{player.note} These are the reference runs of the course.")


NO_RESULT = ("Nothing to show", "Error", "Deadlock")  # titles of last steps
PAGES: dict[str, Callable[[], Player]] = {
    f"_static/{player.__name__}.html": player
    for player in (noise_ball, ring, negotiation, growing_batch)
}


def _write(app: Sphinx, error: Exception | None) -> None:
    """Write every page. A page that would show learners no result ends the build."""
    if error is None:
        for name, make in PAGES.items():
            player = make()
            if player.steps[-1].title in NO_RESULT:
                raise SphinxError(f"{name}: {' '.join(player.steps[-1].sentences)}")
            player.write(Path(app.outdir, name))


def setup(app: Sphinx) -> dict:
    """Write the pages at the end of a build."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
