"""A result document, its wording, its pages and its report in the terminal. Starts nothing."""
