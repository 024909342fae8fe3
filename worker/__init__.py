"""The worker: executes plans on one device, and moves shards to and from its peers."""
