"""Draw the figure of measured results that the README and the first page of the site show.

    python notebooks/site/draw_results.py

It reads the results that the labs ship and writes _static/lab_results.png.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from hvdlab.course.experiment import reference
from hvdlab.course.large_batch_tables import best_rates, fit_each_seed

plt.style.use("hvdlab.lab")
FILE = Path(__file__).parent / "_static/lab_results.png"
MODES = {
    "DDP": "DDP",
    "ZeRO-1 torch": "ZeRO-1",
    "FSDP2 stage 3": "FSDP2",
    "DeepSpeed 3": "DeepSpeed 3",
}


def steps(axes) -> None:
    """Lab 6: fewer steps with a larger batch, up to the critical batch size."""
    best = best_rates(reference("steps_to_goal"))
    law = fit_each_seed(best, fit_steps).mean()
    measured = best.groupby("batch_size")["steps"]
    sizes = np.geomspace(12, 2600, 100)
    axes.loglog(sizes, law.s_min * (1 + law.b_crit / sizes), label="law of McCandlish et al.")
    mean = measured.mean()
    axes.errorbar(mean.index, mean, measured.std(), fmt="o", color="black", label="measured, n = 5")
    axes.axvline(law.b_crit, color="grey", linestyle="--")
    axes.text(law.b_crit * 1.1, 2500, f"critical batch size {law.b_crit:.0f}")
    axes.set(title="Lab 6: steps to 85 % accuracy", xlabel="batch size", ylabel="steps")
    axes.set_xticks([16, 64, 256, 1024], [16, 64, 256, 1024])
    axes.set_yticks([200, 500, 1000, 2000], [200, 500, 1000, 2000])
    axes.minorticks_off()
    axes.legend(loc="upper right", bbox_to_anchor=(1, 0.85))


def fit_steps(batches, steps):
    """Return S_min and B_crit of steps = S_min (1 + B_crit / batch), as lab 6 fits them."""
    slope, least = np.polyfit(1 / batches, steps, 1, w=1 / steps)
    return least, slope / least


def memory(axes) -> None:
    """Lab 12: the memory of a rank falls as ZeRO and FSDP2 divide more of it."""
    table = reference("sharding_modes")
    megabytes = table.groupby(["mode", "ranks"])["memory_bytes"].median() / 1e6
    for offset, ranks, colour in ((-0.2, 2, "#0072B2"), (0.2, 4, "#E69F00")):
        heights = [megabytes.get((mode, ranks), 0) for mode in MODES]
        places = np.arange(len(MODES)) + offset
        axes.bar(places, heights, 0.38, color=colour, label=f"{ranks} ranks")
    axes.set_xticks(range(len(MODES)), MODES.values())
    axes.set(title="Lab 12: memory of a rank, n = 3", ylabel="MB")
    axes.legend()


if __name__ == "__main__":
    figure, panels = plt.subplots(1, 2, figsize=(11, 3.9), layout="constrained")
    steps(panels[0])
    memory(panels[1])
    figure.savefig(FILE, dpi=130)
