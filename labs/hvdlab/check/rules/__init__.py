"""Rules that find a mistake in the source of a script and in the events of its run.

Each rule takes the `Run` and the `Facts` of the source, and yields findings of the catalogue.
"""
