"""`hvdgrade labs`: a hand-out of the course without solutions, and what a class did in the labs."""
