"""Hand in a script to a server of `hvdgrade serve`, and wait for the result.

The server counts a submission once, however often the command has to send it.
"""

from hvdgrade.submit import client

EPILOG, add_arguments, main = client.EPILOG, client.add_arguments, client.main
