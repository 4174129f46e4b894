"""`hvdgrade certificate`: a PDF for a result that passed, signed with the private key of the school."""
