"""Connect to each argument: HOST:PORT, or the path of a socket file."""

import socket
import sys

for place in sys.argv[1:]:
    try:
        if place.startswith("/"):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(place)
        else:
            host, port = place.split(":")
            socket.create_connection((host, int(port)), timeout=3).close()
        print("connected")
    except OSError as error:
        print(error)
