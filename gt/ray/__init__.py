"""Ray as the engine under a service: actors run the ordinary daemons as child processes, on the nodes of a Ray cluster.

The dispatcher's actor starts `gt.dispatcher`, each worker's actor a `gt.worker`; what they exchange goes over TCP with keys, and
never through Ray. Ray places the actors, and starts them again where one dies. `service.py` starts, joins and ends a service;
`scaling.py` decides how many workers it has. Ray is imported in `cluster.py` alone, when it is asked for. The package
may import what monitors are made of, and no service of another kind.
"""
