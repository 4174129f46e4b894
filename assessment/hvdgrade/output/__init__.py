"""Print and write results safely: untrusted text, whole files, and pipes that may be closed."""
