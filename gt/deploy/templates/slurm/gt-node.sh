# Where other nodes reach this one: its first address, or that of the interface GT_INTERFACE.
node_address() {
    if [ -n "${GT_INTERFACE:-}" ]; then
        ip -4 -o address show dev "$GT_INTERFACE" | awk '{ split($4, parts, "/"); print parts[1]; exit }'
    else
        hostname -I | awk '{ print $1 }'
    fi
}
