"""The submitted script: read it safely, flag it, review it, and compare it with others."""
