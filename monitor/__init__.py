"""The monitor: what shows a service at work. It reads the event stream, and nothing else of any other room."""
