"""The command `hvdlab check`: run a Horovod script for a few steps and report its distributed mistakes."""
