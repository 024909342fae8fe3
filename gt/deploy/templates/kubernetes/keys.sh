#!/bin/sh
# Makes the keys of the service, if they are not there yet, and gives them to Kubernetes. Again after `gt keys new`, and after a
# key was withdrawn: a dispatcher that runs notices it when Kubernetes does, within about a minute.
#   sh keys.sh [NAMESPACE [NAME]]        # where the service is, and what it is called (helm: the release)
set -e
namespace=${1:-@@{namespace}}
name=${2:-@@{name}}
cd "$(dirname "$0")"
export GT_KEYS="$PWD/keys" # of this service, whatever others there are
umask 077
test -e "$GT_KEYS/worker.key" || gt keys new worker --role worker
test -e "$GT_KEYS/operator.key" || gt keys new operator --role operator
apply() { kubectl --namespace "$namespace" create "$@" --dry-run=client --output=yaml | kubectl --namespace "$namespace" apply --filename=-; }
kubectl create namespace "$namespace" --dry-run=client --output=yaml | kubectl apply --filename=-
apply secret generic "$name-service-key" --from-file="$GT_KEYS/service.key"
apply secret generic "$name-worker-keys" --from-file="$GT_KEYS/worker.key" --from-file="$GT_KEYS/operator.key"
apply configmap "$name-authorized" --from-file="$GT_KEYS/authorized"
