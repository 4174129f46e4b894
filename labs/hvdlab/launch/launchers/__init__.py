"""One module for each program that starts ranks: mpirun, srun and torchrun."""
