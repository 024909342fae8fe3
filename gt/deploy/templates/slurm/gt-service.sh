#!/bin/bash
# A GT service as a Slurm job: a dispatcher on the first node, @@{tasks} workers on each of @@{nodes} nodes.
#
#   sbatch gt-service.sh          starts it; its address is in the file `address` of the service's folder from then on
#   scancel -b -s TERM JOB        ends it in order
#
# Two minutes before the job's time is over it ends and is queued again; programs go on from their snapshots.
#SBATCH --job-name=gt-service
#SBATCH --nodes=@@{nodes}
#SBATCH --ntasks-per-node=@@{tasks}
@@{directives}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
set -u
umask 077

gt=@@{gt}
# All nodes must see it, and nobody else may: keys, marks and snapshots are there.
folder=@@{folder}
export GT_KEYS="$folder/keys" GT_SNAPSHOTS="$folder/snapshots"
mkdir -p "$folder" && chmod 700 "$folder" || exit 1
for role in worker user; do
    [ -e "$GT_KEYS/$role.key" ] || "$gt" keys new "$role" --role "$role" || exit 1
done

. @@{scripts}/gt-node.sh
address="tcp://$(node_address):$((20000 + SLURM_JOB_ID % 20000))"
ending=""
trap 'ending=requeue' USR1
trap 'ending=end' TERM INT

dispatcher() {
    "$gt" dispatcher --address "$address" --workers "$SLURM_NTASKS" --supervised --marks "$folder/marks" &
    dispatcher=$!
}
workers() {
    srun --kill-on-bad-exit=0 --ntasks="$SLURM_NTASKS" @@{srun} @@{scripts}/gt-worker.sh "$address" &
    workers=$!
}

rm -f "$folder/address"
dispatcher
for _ in {1..60}; do
    [ -z "$ending" ] && kill -0 "$dispatcher" 2> /dev/null || break
    "$gt" health "$address" --timeout 2 > /dev/null && break
    sleep 1
done
"$gt" health "$address" || { kill "$dispatcher" 2> /dev/null; exit 1; }
echo "$address" > "$folder/address.new" && mv "$folder/address.new" "$folder/address"
workers

while [ -z "$ending" ]; do
    wait -n # until a child ends, or a signal comes
    [ -z "$ending" ] || break
    sleep 1
    kill -0 "$dispatcher" 2> /dev/null || { echo "the dispatcher has ended: another one goes on"; dispatcher; }
    kill -0 "$workers" 2> /dev/null || { echo "srun has ended: the workers are started again"; workers; }
done

rm -f "$folder/address"
if [ "$ending" = requeue ]; then
    echo "the time is nearly over: the job is queued again"
    timeout 60 "$gt" restart "$address" --force --wait 30 &
    restart=$!
    wait -n "$dispatcher" "$restart" # it waits for the next dispatcher, which comes with the next job
    kill "$restart" 2> /dev/null
fi
kill "$dispatcher" 2> /dev/null && wait "$dispatcher"
scancel --signal=TERM "$SLURM_JOB_ID" # of the steps, not of this script
wait "$workers"
[ "$ending" = end ] || scontrol requeue "$SLURM_JOB_ID"
