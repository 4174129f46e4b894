"""The command `hvdgrade serve`: the server of the service, and on one machine a worker next to it."""
