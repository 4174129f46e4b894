"""Tools that the checks of several labs share: start ranks, run and read scripts, count messages."""
