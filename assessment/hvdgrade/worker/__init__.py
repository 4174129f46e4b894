"""The worker of the service: it takes gradings from the server's queue, and sends back the results."""
