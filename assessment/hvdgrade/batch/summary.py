"""What a batch came to: OUT/summary.csv of all results, and OUT/index.html of those still handed in.

    python -m hvdgrade.batch.summary OUT

A process of its own, after the gradings: the search for near-identical submissions reads strangers'
source, and one that brings the parser down must not take anything else with it.
"""

import io
import sys
from pathlib import Path

from hvdgrade.batch import csv_table, handed_in
from hvdgrade.batch.layout import write
from hvdgrade.batch.results import load


def main() -> None:
    from hvdgrade.report.pages import class_page
    from hvdgrade.submission import similarity

    out = Path(sys.argv[1])
    documents = load(out)
    rows = io.StringIO(newline="")
    csv_table.write(documents, rows)
    write(out / "summary.csv", rows.getvalue().encode())
    warnings = [*handed_in.not_reached(documents, out), *handed_in.withdrawn(documents, out)]
    documents = handed_in.still_there(documents, out)
    unfinished = "The search for near-identical submissions did not come to its end."
    write(out / "index.html", class_page(documents, warnings=[unfinished, *warnings]).encode())
    sources = {}
    for document in documents:
        name = document["batch"]["name"]
        script = out / "submissions" / f"{name}.py"
        if script.exists():
            sources[name] = script.read_bytes()
    similar = similarity.pairs(sources)
    write(out / "index.html", class_page(documents, similar, warnings=warnings).encode())


if __name__ == "__main__":
    main()
