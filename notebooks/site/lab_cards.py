"""The labs as cards: a picture, a title, what one learns and the minutes, in five groups.

Titles, texts and minutes come from the table in labs/00_start_here.py.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^# \| \[(\d+): (.+?)\]\((.+?)\.ipynb\) \| (\d+) \| (.+) \|$", re.M)
# First lab -> title of the group that begins with it.
GROUPS = {
    1: "Foundations",
    4: "Data parallelism, and large batches",
    9: "One device, and DDP",
    12: "Networks that do not fit on one GPU",
    16: "Faults, traces and clusters",
}
PICTURES = """
    node_and_network condition_number forward_backward_update
    ring_all_reduce distributed_optimizer scaling_regimes warmup_schedules trust_ratio
    number_formats overlapped_loading distributed_sampler
    zero_stages column_row_split pipeline_schedules lora
    two_ranks_one_waits anatomy_of_a_trace hierarchical_all_reduce
""".split()  # of labs/pictures, for labs 1, 2, ...


def name_of(lab: int) -> str:
    """Return the name of the notebook of a lab, for example 05_horovod."""
    return next(
        path.stem for path in (ROOT / "labs").glob(f"{lab:02}_*.py") if "_more_" not in path.stem
    )


def cards(heading: str) -> str:
    """Return the cards of all labs as MyST, for a page in the top folder of the site.

    Args:
        heading: the number signs of the titles of the groups.
    """
    lines = []
    table = ROW.findall((ROOT / "labs/00_start_here.py").read_text("utf-8"))
    for (number, title, name, minutes, text), picture in zip(table, PICTURES, strict=True):
        if int(number) in GROUPS:
            lines += [":::::\n"] * bool(lines)
            lines += [f"{heading} {GROUPS[int(number)]}\n", ":::::{grid} 1 2 3 3", ":gutter: 3"]
            lines += [":class-container: labs\n"]
        lines += [
            f"::::{{grid-item-card}} {number}. {title}",
            f":img-top: labs/pictures/{picture}.svg",
            f":link: notebooks/{name}",
            ":link-type: doc",
            f":link-alt: Lab {number}: {title}\n",
            f"{text[0].upper()}{text[1:]}",
            f":::{{card-footer}}\n{minutes} minutes\n:::",
            "::::",
        ]
    return "\n".join([*lines, ":::::\n"])
