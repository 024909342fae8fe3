#!/bin/sh
# one_python.sh PYTHON FOLDER: imports, the README's example and pure tests of a few folders with that Python and the wheel in dist, in
# an environment of its own in FOLDER, which stays for the next time. A Python that is not there, does not run (such as a shim of pyenv
# for a version that is not chosen) or is too old, is named with the reason and is no failure.
set -eu
command -v "$1" > /dev/null || { echo "$1: left out: it is not there"; exit 0; }
version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>&1) \
    || { echo "$1: left out: $(command -v "$1") does not run: $(printf '%s' "$version" | head -n 1)"; exit 0; }
"$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$1: left out: $version is older than 3.11"; exit 0; }
place=$2/$version
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -x "$place/bin/python" ] || "$1" -m venv --without-pip "$place"
pip() { .venv/bin/python -m pip --disable-pip-version-check --quiet --python "$place/bin/python" install --no-compile "$@"; }
pip pytest hypothesis dist/*.whl
pip --force-reinstall --no-deps dist/*.whl # which may be another one of the same version
awk '/^```python$/ { inside = 1; next } /^```$/ { if (inside) exit } inside' README.md > "$work/train.py"
run=$(cd "$place/bin" && pwd)/python
(cd "$work" && "$run" -W error -c "import gt, gt.nn, gt.optim, gt.client, gt.dispatcher.core, gt.worker.core, gt.monitor.top")
loss=$(cd "$work" && OMP_NUM_THREADS=1 "$run" train.py)
PYTHONSAFEPATH=1 OMP_NUM_THREADS=1 "$run" -m pytest -q -p no:cacheprovider -m "not process and not gpu and not hosts" \
    tests/sharding tests/ir tests/client/segment > "$work/tests.log" 2>&1 || { cat "$work/tests.log"; exit 1; }
echo "$("$run" --version): loss $loss, $(tail -n 1 "$work/tests.log")"
