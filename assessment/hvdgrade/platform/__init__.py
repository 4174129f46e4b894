"""The command `hvdgrade platform`: kits for the places where people hand in."""
