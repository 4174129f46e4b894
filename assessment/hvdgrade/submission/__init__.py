"""The script that was handed in: read safely, flagged, reviewed and compared with others."""
