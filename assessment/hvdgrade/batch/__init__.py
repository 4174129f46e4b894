"""`hvdgrade batch`: grade a class with several workers or under Slurm."""
