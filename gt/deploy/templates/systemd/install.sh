#!/bin/sh
# Installs the units beside this script, and starts the service; again after a change, it replaces them. As root.
set -e
cd "$(dirname "$0")"
install -D -m 644 gt.sysusers.conf "$DESTDIR/etc/sysusers.d/gt.conf"
install -d -m 755 "$DESTDIR/etc/gt" "$DESTDIR/etc/systemd/system"
install -m 644 gt-dispatcher.service gt-worker@.service gt.target "$DESTDIR/etc/systemd/system/"
test -z "$DESTDIR" || exit 0 # into a folder alone: nothing is started
systemd-sysusers gt.conf
systemctl daemon-reload
systemctl enable --now gt.target gt-dispatcher.service @@{instances}
