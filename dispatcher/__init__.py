"""The dispatcher: rewrites the stream of each client into sharded plans for the workers."""
