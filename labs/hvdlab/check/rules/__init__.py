"""Rules that name a mistake from the source of a script and from the events of its run."""
