#!/bin/bash
# One worker of the service at the address that is given, started again when it ends. gt-service.sh has srun run it.
set -u
umask 077
. @@{scripts}/gt-node.sh
folder=@@{folder}
export GT_KEY="$folder/keys/worker.key" GT_SNAPSHOTS="$folder/snapshots" GT_THREADS="${SLURM_CPUS_PER_TASK:-1}"
ending=""
worker=""
trap 'ending=yes; [ -z "$worker" ] || kill "$worker" 2> /dev/null' TERM INT
while [ -z "$ending" ]; do
    @@{gt} worker --address "$1" --device @@{device} --listen "tcp://$(node_address):*" --supervised --marks "$folder/marks" &
    worker=$!
    wait "$worker"
    [ -n "$ending" ] || sleep 1
done
wait "$worker"
