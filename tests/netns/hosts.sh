# SPDX-License-Identifier: Apache-2.0
# Hosts made of network and name spaces on one bridge, in $folder, for
# `. hosts.sh`: hosts_begin NAME..., on HOST COMMAND..., link HOST up|down,
# slow HOST DELAY_MS LOSS_PERCENT, fast, hosts_end. Only for root.
# shellcheck shell=sh

hosts= relays= slowed=

hosts_begin() {
    tag=sl$$
    net=10.$((64 + $$ % 128)).$(($$ / 128 % 256))
    i=1
    echo '127.0.0.1 localhost' >"$folder/hosts"
    for host; do
        echo "$net.$i $host" >>"$folder/hosts"
        i=$((i + 1))
    done
    ip link add "${tag}br" type bridge || return 1
    ip link set "${tag}br" up || return 1
    i=1
    for host; do
        ip netns add "$tag$host" || return 1
        hosts="$hosts $host"
        ip link add "$tag$host" type veth peer name eth0 netns "$tag$host" ||
            return 1
        ip link set "$tag$host" master "${tag}br" up || return 1
        ip -n "$tag$host" addr add "$net.$i/24" dev eth0 || return 1
        ip -n "$tag$host" link set eth0 up || return 1
        ip -n "$tag$host" link set lo up || return 1
        # a process that keeps the host's name and its /etc/hosts
        ip netns exec "$tag$host" unshare --uts --mount sh -c \
            "hostname $host && mount --bind '$folder/hosts' /etc/hosts &&
             echo \$\$ >'$folder/$host.pid' && exec sleep 86400" &
        i=$((i + 1))
    done
    for host; do
        n=0
        until [ -s "$folder/$host.pid" ]; do
            n=$((n + 1))
            [ $n -lt 100 ] || return 1
            sleep 0.1
        done
    done
    # what mpirun calls instead of ssh
    cat >"$folder/agent" <<SH
#!/bin/sh
host=\$1
shift
[ -s "$folder/\$host.pid" ] || { echo "no host \$host" >&2; exit 255; }
# as over a network: a host that is cut off cannot be asked
[ ! -e "$folder/\$host.down" ] || { echo "\$host: no route" >&2; exit 255; }
exec nsenter --target \$(cat "$folder/\$host.pid") --net --uts --mount \
    sh -c "\$*"
SH
    chmod +x "$folder/agent"
    OMPI_MCA_plm_rsh_agent=$folder/agent
    export OMPI_MCA_plm_rsh_agent
}

on() {
    at=$1
    shift
    nsenter --target "$(cat "$folder/$at.pid")" --net --uts --mount "$@"
}

link() { # HOST up|down
    if [ "$2" = down ]; then
        : >"$folder/$1.down"
    else
        rm -f "$folder/$1.down"
    fi
    ip link set "$tag$1" "$2"
}

# slow HOST DELAY_MS LOSS_PERCENT: what comes from and goes to the host; by
# netem, or by $relay (relay.c) where the kernel has no netem
slow() {
    if ip netns exec "$tag$1" tc qdisc add dev eth0 root netem \
        delay "$2ms" loss "$3%" 2>/dev/null &&
        tc qdisc add dev "$tag$1" root netem delay "$2ms" loss "$3%"; then
        return
    fi
    ip link set "$tag$1" nomaster || return 1
    ip link add "$tag${1}x" type veth peer name "$tag${1}y" || return 1
    ip link set "$tag${1}x" master "${tag}br" up || return 1
    ip link set "$tag${1}y" up || return 1
    "$relay" "$tag$1" "$tag${1}y" "$2" "$3" &
    relays="$relays $!"
    slowed="$slowed $1"
}

# as it was, for all hosts
fast() {
    for pid in $relays; do kill "$pid"; done
    for host in $hosts; do
        tc qdisc del dev "$tag$host" root 2>/dev/null
        ip netns exec "$tag$host" tc qdisc del dev eth0 root 2>/dev/null
    done
    for host in $slowed; do
        ip link del "$tag${host}x"
        ip link set "$tag$host" master "${tag}br"
    done
    relays= slowed=
}

hosts_end() {
    fast
    for host in $hosts; do
        for pid in $(ip netns pids "$tag$host" 2>/dev/null); do
            kill -KILL "$pid" 2>/dev/null
        done
        ip link del "$tag$host" 2>/dev/null
        ip netns del "$tag$host" 2>/dev/null
    done
    ip link del "${tag}br" 2>/dev/null
    hosts=
}
