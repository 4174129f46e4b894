"""`hvdgrade course`: courses, assignments and grades of the service."""
