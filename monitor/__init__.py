"""The monitor: tools that show a service at work. They read only the event stream."""
