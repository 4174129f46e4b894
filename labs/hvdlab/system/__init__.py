"""What the system, Open MPI and Slurm report about this machine. It needs the standard library only."""
