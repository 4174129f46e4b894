"""`hvdgrade quiz`: the self-check questions of the labs as files that learning platforms import."""
