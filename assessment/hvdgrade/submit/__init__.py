"""The command `hvdgrade submit`: hand in a script to a server of `hvdgrade serve`."""
