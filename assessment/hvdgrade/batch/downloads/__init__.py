"""What a learning platform's download says about each file: which student handed it in, and when."""
