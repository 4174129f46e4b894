"""Analysis of the source of a training script. It needs the standard library only."""
