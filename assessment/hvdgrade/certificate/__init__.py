"""`hvdgrade certificate`: a PDF for a result that passed, sealed with a secret key of the instructor."""
