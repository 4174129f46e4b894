"""What the checks of several labs share: ranks, scripts to run, and counters."""
