"""Run one submission in its sandbox: start it, monitor it, collect its records, probe and calibrate."""
