"""The format `csv`: one table with a row per submission, for a spreadsheet."""

import argparse

from hvdgrade.batch import csv_table
from hvdgrade.output import files
from hvdgrade.result_document import ResultDocument

OUTPUT = "csv.csv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the format in the help text. It has no options."""
    parser.add_argument_group(
        "csv", "OUT/csv.csv: a table with a row per submission, for a spreadsheet"
    )


def write(documents: list[ResultDocument], args: argparse.Namespace) -> list[str]:
    """Write the table to `args.output` and return lines for the instructor."""
    files.write(args.output, csv_table.table(documents))
    return [f"{args.output}: {len(documents)} submissions"]
