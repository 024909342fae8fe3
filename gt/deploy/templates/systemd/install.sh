#!/bin/sh
# Installs the units beside this script, and starts the service. As root.
set -e
cd "$(dirname "$0")"
install -D -m 644 gt.sysusers.conf /etc/sysusers.d/gt.conf
systemd-sysusers gt.conf
install -m 644 gt-dispatcher.service gt-worker@.service gt.target /etc/systemd/system/
systemctl daemon-reload
systemctl enable --now gt.target @@{instances} gt-dispatcher.service
