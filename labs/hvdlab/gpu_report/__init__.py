"""`hvdlab gpu`: check and measure the GPUs of one machine, and write one report.

    command.py     arguments, exit code, and what is printed
    parts.py       the list of parts: the question of each part, its ranks, its time limit, its needs
    runner.py      starts each part as its own process (or ranks) and ends it at its time limit
    results.py     the data types of the report, written to JSON and read from it
    markdown.py    the report as tables for a reader;  against.py  the comparison with an older report

Every other module is a part or a helper of the parts: `python -m hvdlab.gpu_report.MODULE` runs a part.
"""
