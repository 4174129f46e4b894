"""`hvdlab check`: run a Horovod script for a few steps and name its distributed mistakes."""
