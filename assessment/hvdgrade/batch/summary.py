"""Write OUT/summary.csv with all results, and OUT/index.html without withdrawn submissions.

    python -m hvdgrade.batch.summary OUT

This is a separate process that starts after all gradings, because the search for near-identical submissions
parses untrusted source. If a submission crashes the parser, no grading is lost.
"""

import sys
from pathlib import Path

from hvdgrade.batch import csv_table, handed_in
from hvdgrade.batch.layout import write
from hvdgrade.batch.results import load


def main() -> None:
    """Write both files to the folder that is the first command-line argument."""
    from hvdgrade.report.pages import class_page
    from hvdgrade.submission import similarity

    out = Path(sys.argv[1])
    documents = load(out)
    write(out / "summary.csv", csv_table.table(documents))
    warnings = [*handed_in.not_reached(documents, out), *handed_in.withdrawn(documents, out)]
    documents = handed_in.still_there(documents, out)
    # This first page remains if the search crashes this process.
    unfinished = "The search for near-identical submissions did not finish."
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
