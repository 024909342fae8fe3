"""A Ray cluster of several nodes on this machine: a process that does what the lines of its standard input say, until their end.

python cluster.py 4 PORT  four nodes of one CPU each, with Ray's client server at that port; it says where they are
add                       one node more
remove                    the node of a worker of the service, which is not the head
actors                    the named actors that there are
free                      how many CPUs are free
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}


def say(*words: object) -> None:
    print(*words, flush=True)


def named() -> list[str]:
    return sorted(each["name"] for each in ray.util.list_named_actors(all_namespaces=True))


def remove_one(cluster: Cluster) -> None:
    """Remove the node of the first worker that is on none of the head."""
    for name in named():
        if name.startswith("gt-worker-"):
            status = ray.get(ray.get_actor(name, namespace="gt").status.remote(), timeout=30)
            for node in cluster.worker_nodes:
                if node.node_id == status["node"]:
                    cluster.remove_node(node, allow_graceful=False)
                    say("removed the node of", name)
                    return
    say("found no worker on another node")


def main() -> None:
    Path(os.environ["RAY_TMPDIR"], "ray").mkdir(parents=True)
    head = {"include_dashboard": False, "ray_client_server_port": int(sys.argv[2]), **NODE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(int(sys.argv[1]) - 1):
            cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False)
        say("ray at", cluster.address)
        for line in sys.stdin:
            if line == "add\n":
                cluster.add_node(**NODE)
                say("added")
            elif line == "remove\n":
                remove_one(cluster)
            elif line == "actors\n":
                say("actors", *named())
            elif line == "free\n":
                say("free", int(ray.available_resources().get("CPU", 0)))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
