"""What the source of a training script says. It needs the standard library only."""
