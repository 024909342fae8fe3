#!/bin/bash
# Runs a program with the service: sbatch gt-client.sh [PROGRAM ARGUMENTS …], or on any node that sees the service's folder. The
# program is given the address of the service as its last argument.
#SBATCH --job-name=gt-client
#SBATCH --ntasks=1
@@{partition}
set -u
folder=@@{folder}
export GT_KEY="$folder/keys/user.key"
for _ in {1..300}; do
    [ -s "$folder/address" ] && @@{gt} health "$(cat "$folder/address")" --ready > /dev/null && break
    sleep 1
done
[ -s "$folder/address" ] || { echo "no service has begun in $folder: sbatch gt-service.sh" >&2; exit 1; }
[ $# -gt 0 ] || set -- @@{scripts}/train.py
exec @@{python} "$@" "$(cat "$folder/address")"
