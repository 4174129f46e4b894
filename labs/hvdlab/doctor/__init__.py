"""The command `hvdlab doctor`: it says what is wrong with this machine, and how to fix it."""
