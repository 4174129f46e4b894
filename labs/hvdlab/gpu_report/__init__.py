"""`hvdlab gpu`: check and measure the GPUs of one machine, and write one report.

    command.py     arguments, exit code, what is printed
    parts.py       the list of parts: what each one answers, its ranks, its time limit, what it needs
    runner.py      starts each part as its own process (or ranks) and ends it after its time limit
    results.py     the data types of the report, and how they become JSON and come back
    markdown.py    the report as tables for a reader;  against.py  the comparison with an older report

Every other module is a part, or serves the parts: `python -m hvdlab.gpu_report.MODULE`.
"""
