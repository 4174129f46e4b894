"""`python -m hvdlab.scaling`: compare the cost model with published efficiencies."""

from rich.console import Console
from rich.table import Table

from hvdlab.scaling.published import FITTED, rows


def main() -> None:
    """Print the table."""
    table = Table(box=None, header_style="dim", padding=(0, 1))
    for title in "experiment", "GPUs", "published", "model", "points off", "limited by", "":
        table.add_column(title, justify="right" if title in ("GPUs", "points off") else "left")
    for row in rows():
        table.add_row(
            row["experiment"],
            str(row["ranks"]),
            f"{row['published']:.1%}",
            f"{row['model']:.1%}",
            f"{100 * (row['model'] - row['published']):+.1f}",
            row["limit"],
            "fitted" if row["fitted"] else "predicted",
        )
    latency, share, jitter = FITTED
    console = Console()
    console.print("Efficiency: images/s of N GPUs divided by N times the images/s of one GPU")
    console.print(table)
    console.print(
        f"Fitted, for all networks, to the six numbers marked so: {latency * 1e6:.0f} us per ring step, "
        f"{share:.0%} of 25 Gbit/s, jitter {jitter:.1%}."
    )


if __name__ == "__main__":
    main()
