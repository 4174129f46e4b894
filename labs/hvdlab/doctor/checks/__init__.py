"""The doctor's checks, one module for each topic."""
