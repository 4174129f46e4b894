"""Write what a submission produced safely: its text, files and a terminal that may go away."""
