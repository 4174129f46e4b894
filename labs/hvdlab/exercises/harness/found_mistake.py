"""Put a mistake that `hvdlab check` finds in a learner's script into the message of an exercise."""

from hvdlab.mistakes import Finding

# `hvdlab check` also accepts ranks that read all data in other orders. The exercises demand shards.
SHARD = "Give each rank its own shard of the data."


def told(found: Finding) -> str:
    """Return line, title, observation and remedy of a finding as sentences."""
    fix = SHARD if found.id == "identical-batches" else found.fix
    return f"line {found.line}: {found.title}. {found.seen} {fix}"
