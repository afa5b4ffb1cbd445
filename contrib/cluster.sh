#!/bin/bash
# cluster.sh - a whole Slurm cluster on this one machine, for tests and for a first look.
#
# A real slurmctld and munged run on the host, and one slurmd for each node. Every node has its own
# network, pid, mount, UTS and IPC namespace, an address on a bridge, and a disk folder of its own
# mounted at /local, /tmp and its spool: killing the first process of a node is the loss of a
# machine, taking its link down is a cut cable. Where namespaces are refused (a plain container),
# the same verbs drive several slurmd on one host, each with its own port, spool and log.
#
# All that is started is recorded as "pid starttime" below the state folder, and only what still
# matches such a record is ever signalled, so leftovers of a broken run are found and strangers are
# not. The folder is locked while a verb changes something.
set -u

usage() {
    cat <<END
usage: cluster.sh VERB

  up [N]           bring up N nodes (default 6), or mend what is already up
  down             stop everything and remove the bridge
  status           say what runs
  run [--user NAME] CMD...
                   run CMD from this folder with SLURM_CONF set, as NAME if asked
  env              print the settings as shell assignments, for eval
  kill NODE...     lose nodes: SIGKILL to all their processes at once
  revive NODE      start it again
  partition NODE   take its network link down
  heal NODE        and up again

Needs root. Settings from the environment:
  GTRAIN_CLUSTER_DIR    state, logs, disks (now $dir)
  GTRAIN_CLUSTER_MODE   namespaces | plain (default: namespaces where they are allowed)
  GTRAIN_PREFIX         where gtrain is: a build folder, or what \`make install\` filled
                        (default: build/ beside this script's folder, then the system)
END
}

dir=${GTRAIN_CLUSTER_DIR:-/var/lib/gtrain-cluster}
here=$(cd "$(dirname "$0")" && pwd)
self=$here/$(basename "$0")
local_dir=/local # node-local storage, the same path on every node
up_deadline_s=60
machine_lock=/var/lock/gtrain-cluster # held while a cluster picks its number

say() {
    echo "cluster: $*"
}

die() {
    echo "cluster: $*" >&2
    exit 1
}

# ---- records of what was started ----

# The start time of a process in clock ticks since boot, or nothing if it is gone or a zombie.
start_time() {
    local stat
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
    set -- ${stat##*)}
    [ "$1" != Z ] && echo "${20}"
}

record() { # NAME PID
    local t
    t=$(start_time "$2") && echo "$2 $t" >"$dir/run/$1"
}

# Print the pid recorded under a name if that very process still runs.
pid_of() {
    local pid started
    { read -r pid started <"$dir/run/$1"; } 2>/dev/null || return 1
    [ "$(start_time "$pid")" = "$started" ] && echo "$pid"
}

# Stop a recorded process: SIGTERM, up to two seconds, then SIGKILL.
stop() {
    local pid i
    if pid=$(pid_of "$1"); then
        kill -TERM "$pid" 2>/dev/null
        for i in $(seq 40); do
            pid_of "$1" >/dev/null || break
            [ "$i" = 40 ] && kill -KILL "$pid" 2>/dev/null
            sleep 0.05
        done
    fi
    rm -f "$dir/run/$1"
}

# Poll a command every 50 ms until it succeeds, for so many seconds, however long it takes itself.
wait_for() { # SECONDS CMD...
    local until=$((SECONDS + $1))
    shift
    while ! "$@" >/dev/null 2>&1; do
        [ $SECONDS -le $until ] || return 1
        sleep 0.05
    done
}

# Start a daemon that holds none of our descriptors (the lock above all), record it by name.
daemon() { # NAME LOG CMD...
    local name=$1 log=$2
    shift 2
    setsid "$@" </dev/null >>"$log" 2>&1 7>&- 9>&- &
    record "$name" $! || die "$name did not start; its log is $log"
}

# ---- what this machine allows ----

namespaces_work() {
    command -v ip >/dev/null && command -v unshare >/dev/null || return 1
    unshare --net --pid --mount --uts --ipc --fork sh -c \
        'mount -t proc proc /proc && mount -t tmpfs tmpfs /dev/shm && hostname x' \
        >/dev/null 2>&1 || return 1
    ip link add gtprobe$$ type veth peer name gtprobe${$}b >/dev/null 2>&1 || return 1
    ip link del gtprobe$$
    ip link add gtprobe$$ type bridge >/dev/null 2>&1 || return 1
    ip link del gtprobe$$
}

choose_mode() {
    case ${GTRAIN_CLUSTER_MODE:-} in
    namespaces)
        namespaces_work || die "GTRAIN_CLUSTER_MODE=namespaces, but this machine refuses them" \
            "(needs root with CAP_SYS_ADMIN and CAP_NET_ADMIN, and iproute2); try plain"
        mode=namespaces
        ;;
    plain) mode=plain ;;
    '')
        mode=plain
        namespaces_work && mode=namespaces
        ;;
    *) die "GTRAIN_CLUSTER_MODE is '$GTRAIN_CLUSTER_MODE': say namespaces or plain" ;;
    esac
}

port_free() {
    ! { exec 8<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null
}

# Several clusters may live on one machine, each with a number: its bridge, subnet and ports.
# Adding the bridge is what takes the number, so two that start at once get different ones.
choose_number() {
    for number in $(seq 0 29); do
        base_port=$((17000 + 100 * number))
        subnet=10.$((211 + number)).77
        port_free $base_port || continue
        [ -e /sys/class/net/gtrain$number ] && continue
        [ $mode = plain ] && return 0
        ip -4 route show | grep -q "^10\.$((211 + number))\." && continue
        # An address of its own: a bridge has its lowest port's otherwise, and with the loss of that
        # node the others would look for the controller at an address that is gone, for seconds.
        ip link add gtrain$number address "02:67:74:72:61:$(printf %02x "$number")" type bridge \
            2>/dev/null && return 0
    done
    die "no free bridge name, subnet and port for one more cluster (looked at 30)"
}

# ---- where gtrain is ----

# Set plugin, gtrain and agent from a build folder or an installed tree; fail if one is missing.
look_in() {
    local p=$1
    plugin= gtrain= agent=
    if [ -f "$p/config.status" ]; then
        plugin=$p/spank/.libs/gtrain.so gtrain=$p/gtrain agent=$p/gtrain-agent
    else
        plugin=$(find "$p" -path '*slurm*' -name gtrain.so -type f 2>/dev/null | head -1)
        gtrain=$(find "$p" -path '*/bin/gtrain' -type f 2>/dev/null | head -1)
        agent=$(find "$p" -path '*/gtrain/gtrain-agent' -type f 2>/dev/null | head -1)
    fi
    [ -f "$plugin" ]
}

find_gtrain() {
    local p
    if [ -n "${GTRAIN_PREFIX:-}" ]; then
        p=$(cd "$GTRAIN_PREFIX" 2>/dev/null && pwd) || die "GTRAIN_PREFIX: no folder $GTRAIN_PREFIX"
        look_in "$p" || die "GTRAIN_PREFIX=$p holds no gtrain.so: run make or make install first"
        return 0
    fi
    look_in "$here/../build" && plugin=$(realpath "$plugin") gtrain=$(realpath -m "$gtrain") \
        agent=$(realpath -m "$agent") && return 0
    for p in /usr/lib/*/slurm-wlm /usr/lib/slurm /usr/lib64/slurm /usr/local/lib/slurm; do
        [ -f "$p/gtrain.so" ] || continue
        plugin=$p/gtrain.so
        gtrain=$(command -v gtrain) || gtrain=/usr/local/bin/gtrain
        agent=${gtrain%/bin/gtrain}/libexec/gtrain/gtrain-agent
        return 0
    done
    plugin=
}

write_plugstack() {
    find_gtrain
    if [ -z "$plugin" ]; then
        echo "# no gtrain.so was found when this cluster came up" >"$dir/etc/plugstack.conf"
        say "no gtrain.so found: the cluster runs without the plugin (GTRAIN_PREFIX names one)"
        return 0
    fi
    echo "optional $plugin gtrain=$gtrain agent=$agent" >"$dir/etc/plugstack.conf.new"
    mv "$dir/etc/plugstack.conf.new" "$dir/etc/plugstack.conf"
    # In a build folder gtrain is libtool's wrapper, which writes beside itself on its first run:
    # do that now, as root, not later as somebody who may not.
    [ -x "$gtrain" ] && "$gtrain" --version >/dev/null 2>&1
    say "plugin: $plugin"
}

# ---- configuration ----

node_address() { # INDEX
    [ "$mode" = plain ] && echo 127.0.0.1 || echo "$subnet.$((10 + $1))"
}

write_settings() {
    {
        echo "mode=$mode"
        echo "nodes=$nodes"
        echo "number=$number"
        echo "subnet=$subnet"
        echo "base_port=$base_port"
        echo "made_local=$made_local"
    } >"$dir/etc/settings"
}

load_settings() {
    [ -f "$dir/etc/settings" ] && . "$dir/etc/settings"
}

write_slurm_conf() {
    local host i half=$(((nodes + 1) / 2)) controller=127.0.0.1
    host=$(hostname -s)
    [ $mode = namespaces ] && controller=$subnet.1
    cat >"$dir/etc/slurm.conf" <<END
ClusterName=gtrain
SlurmctldHost=$host($controller)
SlurmctldPort=$base_port
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CryptoType=crypto/munge
StateSaveLocation=$dir/ctld
SlurmctldPidFile=$dir/ctld/pid
SlurmctldLogFile=$dir/ctld/log
SlurmdSpoolDir=$dir/nodes/%n/spool
SlurmdPidFile=$dir/nodes/%n/pid
SlurmdLogFile=$dir/nodes/%n/log
SlurmdParameters=config_overrides
PlugStackConfig=$dir/etc/plugstack.conf
TopologyPlugin=topology/tree
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=2
END
    # Nothing here uses cgroups, but slurmd refuses to start where none is mounted, unless it is told
    # which kind it would have.
    echo "CgroupPlugin=cgroup/v1" >"$dir/etc/cgroup.conf"
    for i in $(seq 0 $((nodes - 1))); do
        echo -n "NodeName=n$i NodeAddr=$(node_address "$i") CPUs=16 State=UNKNOWN"
        # On one host only the ports tell nodes apart.
        if [ $mode = plain ]; then
            echo " NodeHostname=$host Port=$((base_port + 10 + i))"
        else
            echo " NodeHostname=n$i Port=$((base_port + 1))"
        fi
    done >>"$dir/etc/slurm.conf"
    echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP" >>"$dir/etc/slurm.conf"
    if [ "$nodes" -gt 1 ]; then
        echo "SwitchName=leaf0 Nodes=n[0-$((half - 1))]"
        echo "SwitchName=leaf1 Nodes=n[$half-$((nodes - 1))]"
        echo "SwitchName=spine Switches=leaf[0-1]"
    else
        echo "SwitchName=leaf0 Nodes=n0"
    fi >"$dir/etc/topology.conf"
    {
        echo "127.0.0.1 localhost"
        [ $mode = namespaces ] && echo "$subnet.1 $host"
        for i in $(seq 0 $((nodes - 1))); do
            echo "$(node_address "$i") n$i"
        done
    } >"$dir/etc/hosts"
}

# ---- the parts ----

start_munge() {
    pid_of munge >/dev/null && return 0
    mkdir -p "$dir/munge"
    chmod 755 "$dir/munge"
    if [ ! -f "$dir/etc/munge.key" ]; then
        (umask 077 && head -c 128 /dev/urandom >"$dir/etc/munge.key")
    fi
    rm -f "$dir/munge/socket" "$dir/munge/socket.lock"
    daemon munge "$dir/munge/log" munged --foreground --key-file="$dir/etc/munge.key" \
        --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" --log-file="$dir/munge/log" \
        --seed-file="$dir/munge/seed"
    wait_for 10 munge -n --socket="$dir/munge/socket" ||
        die "munged does not answer; its log is $dir/munge/log"
}

controller_settled() {
    scontrol ping || ! pid_of slurmctld
}

start_controller() {
    # One that was told to end a moment ago may be busy with that for ten seconds.
    wait_for 30 controller_settled
    pid_of slurmctld >/dev/null && return 0
    # shellcheck disable=SC2086 # $1 is an option or nothing
    daemon slurmctld "$dir/ctld/err" slurmctld -D ${1:-} -f "$dir/etc/slurm.conf"
    wait_for 10 scontrol ping || die "slurmctld does not answer; its log is $dir/ctld/log"
}

# The first process of a node, in its namespaces: mounts, network, then slurmd as a child. A shell
# stays pid 1 because slurmd does not reap the strays that a kernel hands to pid 1.
node_main() {
    local i=$1 name=n$1 pid d
    load_settings
    d=$dir/nodes/$name
    # /proc is still the host's here, so this is the pid that the host knows us by.
    read -r pid _ </proc/self/stat
    record "$name" "$pid"
    # Steps start in slurmd's folder, which must be one that every node has.
    cd /
    mount --make-rprivate /
    mount -t proc proc /proc
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    hostname "$name"
    wait_for 10 ip link show eth0 || die "$name got no network link"
    ip addr add "$(node_address "$i")/24" dev eth0
    ip link set lo up
    ip link set eth0 up
    mount --bind "$dir/etc/hosts" /etc/hosts
    mount --bind "$d/local" "$local_dir"
    # The state folder may be below /tmp: keep it in sight under the private one.
    case $dir/ in
    /tmp/*)
        mount --bind "$dir" /mnt && mount --bind "$d/tmp" /tmp && mkdir -p "$dir" &&
            mount --bind /mnt "$dir" && umount /mnt
        ;;
    *) mount --bind "$d/tmp" /tmp ;;
    esac
    slurmd -D -b -N "$name" -f "$dir/etc/slurm.conf" &
    wait $!
    # As a service manager would: started again when it dies, without -b, the node has not rebooted.
    while sleep 0.5; do
        slurmd -D -N "$name" -f "$dir/etc/slurm.conf"
    done
}

start_node() { # INDEX
    local i=$1 name=n$1 d=$dir/nodes/n$1 pid
    pid_of "$name" >/dev/null && return 0
    mkdir -p "$d/local" "$d/tmp" "$d/spool"
    chmod 1777 "$d/local" "$d/tmp"
    rm -f "$dir/run/$name"
    if [ $mode = plain ]; then
        # The marker in the environment is inherited by every slurmstepd: kill finds them by it.
        daemon "$name" "$d/err" env GTRAIN_CLUSTER_NODE="$dir/$name" \
            slurmd -D -b -N "$name" -f "$dir/etc/slurm.conf"
        return 0
    fi
    ip link del "$(link_of "$name")" 2>/dev/null
    setsid unshare --net --pid --mount --uts --ipc --fork --kill-child \
        "$self" _node "$i" </dev/null >>"$d/err" 2>&1 9>&- &
    wait_for 10 pid_of "$name" || die "$name did not start; its log is $d/err"
    pid=$(pid_of "$name")
    ip link add "$(link_of "$name")" type veth peer name eth0 netns "$pid" &&
        ip link set "$(link_of "$name")" master "gtrain$number" up ||
        die "$name got no network link"
}

link_of() {
    echo "gt$number-$1"
}

# Every process that descends from the slurmstepds of a plain node, they and its slurmd included.
plain_processes() { # NAME
    local p todo="" all=""
    # By one process: a node is lost at once, also on a machine that runs much else.
    todo="$(pid_of "$1") $(grep -lszxF "GTRAIN_CLUSTER_NODE=$dir/$1" /proc/[0-9]*/environ | cut -d/ -f3)"
    while [ -n "${todo# }" ]; do
        all="$all $todo"
        todo=$(for p in $todo; do cat "/proc/$p/task/"*/children 2>/dev/null; done)
    done
    echo $all
}

# At once: nobody has time to notice the first before the last is gone.
kill_nodes() { # NAMES
    local name pids=""
    for name; do
        if [ "$mode" = plain ]; then
            pids="$pids $(plain_processes "$name")"
        else
            pids="$pids $(pid_of "$name")"
        fi
    done
    # shellcheck disable=SC2086 # words
    [ -z "${pids// /}" ] || kill -KILL $pids 2>/dev/null
    for name; do
        wait_for 10 node_gone "$name" || die "$name: its first process does not die"
        rm -f "$dir/run/$name"
    done
}

node_gone() {
    ! pid_of "$1"
}

node_registered() {
    # A node that does not answer carries a mark behind its state.
    scontrol show node "$1" 2>/dev/null | grep -Eq 'State=(IDLE|ALLOCATED|MIXED)(\+CLOUD)? '
}

# The controller has heard of a slurmd of each that started at that time (date +%s) or later.
heard_since() { # SECONDS NAMES
    local since=$1 name at
    shift
    for name; do
        at=$(scontrol show node "$name" 2>/dev/null | sed -n 's/.*SlurmdStartTime=\([0-9T:-]*\).*/\1/p')
        [ -n "$at" ] && [ "$(date -d "$at" +%s)" -ge "$since" ] || return 1
    done
}

all_registered() {
    [ "$(sinfo -h -N -t idle,alloc,mix -r -o %N | sort -u | wc -l)" -ge "$nodes" ]
}

nodes_hear_each_other() {
    [ "$mode" = plain ] || [ "$nodes" -lt 2 ] && return 0
    nsenter -t "$(pid_of n0)" --net bash -c ": </dev/tcp/$(node_address 1)/$((base_port + 1))" \
        2>/dev/null
}

# ---- verbs ----

need_root() {
    [ "$(id -u)" = 0 ] || die "needs root: a cluster's daemons, namespaces and bridge"
}

need_slurm() {
    local c
    for c in slurmctld slurmd srun munged; do
        command -v $c >/dev/null ||
            die "$c is missing: apt-get install slurmctld slurmd slurm-client munge"
    done
}

# One verb at a time. What the caller has open besides the first three descriptors is closed first:
# daemons started here would keep it open for as long as the cluster is up.
lock() {
    local fd
    for fd in /proc/self/fd/*; do
        fd=${fd##*/}
        # 255 is the shell's own, this script.
        [ "$fd" -gt 2 ] && [ "$fd" != 255 ] && eval "exec $fd>&-"
    done
    mkdir -p "$dir/run" || die "cannot make $dir"
    exec 9>"$dir/lock"
    flock -w 60 9 || die "another cluster.sh has held $dir/lock for a minute"
}

is_up() {
    load_settings && pid_of slurmctld >/dev/null && pid_of munge >/dev/null
}

# Something of it still runs: it can be mended.
is_partly_up() {
    load_settings && { pid_of slurmctld || pid_of munge; } >/dev/null
}

need_up() {
    load_settings && pid_of slurmctld >/dev/null || die "not up: $0 up"
    export SLURM_CONF=$dir/etc/slurm.conf
}

need_node() { # NAME
    case ${1:-} in
    n[0-9] | n[0-9][0-9])
        [ "${1#n}" -lt "$nodes" ] && return 0
        ;;
    esac
    die "'${1:-}' is no node of this cluster: they are n0 to n$((nodes - 1))"
}

up() {
    local i wanted=${1:-} fresh="" began started=""
    case $wanted in
    '' | [1-9] | [1-5][0-9]) ;;
    *) die "up $wanted: say a number of nodes, 1 to 59" ;;
    esac
    need_slurm
    if is_partly_up; then
        [ -z "$wanted" ] || [ "$wanted" = "$nodes" ] ||
            die "already up with $nodes nodes; for $wanted say down first"
        say "already up; mending what is not"
    else
        down_quietly
        fresh=-c
        nodes=${wanted:-6}
        choose_mode
        # A number is taken for good when its bridge is there and its controller listens.
        exec 7>"$machine_lock"
        flock -w 60 7 || die "another cluster has been starting for a minute ($machine_lock)"
        choose_number
        say "starting $nodes nodes ($mode) in $dir"
        mkdir -p "$dir/etc" "$dir/ctld" "$dir/nodes" "$dir/shared"
        chmod 755 "$dir" "$dir/etc"
        chmod 1777 "$dir/shared"
        made_local=no
        [ -d $local_dir ] || { mkdir $local_dir && chmod 1777 $local_dir && made_local=yes; }
        # The controller refuses the records of a cluster of another name; all of them are dropped.
        rm -f "$dir/ctld/clustername"
        write_settings
        write_slurm_conf
        if [ $mode = namespaces ]; then
            ip addr add "$subnet.1/24" dev "gtrain$number" && ip link set "gtrain$number" up ||
                die "the bridge gtrain$number got no address"
        fi
    fi
    export SLURM_CONF=$dir/etc/slurm.conf
    write_plugstack
    start_munge
    # A new cluster begins without the jobs of the one before; one that is mended keeps its own.
    start_controller $fresh
    exec 7>&-
    began=$(date +%s)
    for i in $(seq 0 $((nodes - 1))); do
        pid_of "n$i" >/dev/null || started="$started n$i"
        start_node "$i"
        [ $mode = plain ] || ip link set "$(link_of "n$i")" up
    done
    wait_for $up_deadline_s all_registered || {
        sinfo -N -l >&2
        die "not every node registered within $up_deadline_s s; logs are $dir/nodes/n*/{log,err}"
    }
    # A node that was lost a moment ago may still count as registered before its slurmd listens again;
    # and what is launched on it before it has reported itself counts as missing there.
    wait_for $up_deadline_s heard_since "$began" $started ||
        die "not every node reported within $up_deadline_s s; logs are $dir/nodes/n*/{log,err}"
    wait_for 10 nodes_hear_each_other || die "n0 cannot reach n1 over the bridge gtrain$number: a firewall" \
        "that filters bridges (br_netfilter with a FORWARD policy of drop) does that"
    if [ $mode = plain ]; then
        say "up: $nodes nodes, n0 to n$((nodes - 1)), without namespaces: all on this host's" \
            "network, and /tmp, $local_dir and $dir/shared are one for all"
    else
        say "up: $nodes nodes, n0 to n$((nodes - 1)); $local_dir is each node's own disk," \
            "$dir/shared is shared"
    fi
    say "try next:  $self run srun -N$nodes hostname"
}

down_quietly() {
    local name p
    if load_settings; then
        for p in "$dir"/run/n[0-9]*; do
            [ -e "$p" ] && kill_nodes "${p##*/}"
        done
    fi
    stop slurmctld
    stop munge
    load_settings || return 0
    if [ "$mode" = namespaces ]; then
        for name in "$dir"/nodes/n*; do
            ip link del "$(link_of "${name##*/}")" 2>/dev/null
        done
        ip link del "gtrain$number" 2>/dev/null
    fi
    # Another cluster on this machine may still mount its disks there.
    if [ "$made_local" = yes ] && ! ls -d /sys/class/net/gtrain[0-9]* >/dev/null 2>&1; then
        rmdir "$local_dir" 2>/dev/null
    fi
    rm -f "$dir/etc/settings"
}

down() {
    local was=no
    is_up && was=yes
    down_quietly
    if [ $was = yes ]; then
        say "down; logs, disks and shared files stay in $dir"
    else
        say "nothing was up; leftovers, if any, are cleaned"
    fi
    say "try next:  $self up"
}

status() {
    local i name running
    load_settings || {
        say "down"
        return 1
    }
    export SLURM_CONF=$dir/etc/slurm.conf
    say "$nodes nodes ($mode), state in $dir"
    for name in munge slurmctld; do
        say "$name: $(pid_of $name >/dev/null && echo runs || echo "does not run")"
    done
    for i in $(seq 0 $((nodes - 1))); do
        name=n$i
        running=$(pid_of $name >/dev/null && echo runs || echo killed)
        if [ $mode = namespaces ] && [ $running = runs ]; then
            [ "$(cat "/sys/class/net/$(link_of $name)/operstate" 2>/dev/null)" = up ] ||
                running="runs, cut off"
        fi
        say "$name: $running; Slurm says $(sinfo -h -n $name -o %T 2>/dev/null)"
    done
    say "plugstack.conf: $(cat "$dir/etc/plugstack.conf")"
    is_up
}

run() {
    local user=
    case ${1:-} in
    --user)
        user=${2:?run --user needs a name}
        shift 2
        ;;
    --user=*)
        user=${1#--user=}
        shift
        ;;
    esac
    [ $# -gt 0 ] || die "run what? For example: $0 run srun hostname"
    need_up
    case $mode:$PWD/ in
    namespaces:/tmp/* | namespaces:$local_dir/*)
        say "note: $PWD is the host's; on the nodes /tmp and $local_dir are their own" >&2
        ;;
    esac
    [ -z "$user" ] && exec "$@"
    id "$user" >/dev/null 2>&1 || die "run --user $user: no such user"
    exec setpriv --reuid "$user" --regid "$(id -g "$user")" --init-groups -- \
        env HOME="$(getent passwd "$user" | cut -d: -f6)" USER="$user" LOGNAME="$user" "$@"
}

print_env() {
    need_up
    echo "export SLURM_CONF='$SLURM_CONF'"
    echo "GTRAIN_CLUSTER_MODE='$mode'"
    echo "GTRAIN_CLUSTER_NODES='$nodes'"
    echo "GTRAIN_CLUSTER_SHARED='$dir/shared'"
    echo "GTRAIN_CLUSTER_LOCAL='$local_dir'"
}

change() { # VERB NODE, or NODES to kill
    local began node
    need_up
    need_node "${2:-}"
    case $1 in
    kill)
        shift
        for node; do
            need_node "$node"
        done
        kill_nodes "$@"
        say "$* is lost; Slurm does not know yet. Try next:  $self revive $1"
        ;;
    revive)
        began=0
        pid_of "$2" >/dev/null || began=$(date +%s)
        start_node "${2#n}"
        [ "$mode" = plain ] || ip link set "$(link_of "$2")" up
        wait_for $up_deadline_s heard_since "$began" "$2" && wait_for $up_deadline_s node_registered "$2" ||
            die "$2 did not register within $up_deadline_s s; its log is $dir/nodes/$2/log"
        say "$2 is back"
        ;;
    partition | heal)
        [ "$mode" = plain ] && die "$1: in plain mode the nodes share this host's network," \
            "nothing can be cut; kill and revive work"
        pid_of "$2" >/dev/null || die "$1: $2 is not running; try revive $2"
        if [ "$1" = partition ]; then
            ip link set "$(link_of "$2")" down
            say "$2 is cut off. Try next:  $self heal $2"
        else
            ip link set "$(link_of "$2")" up
            say "$2 is connected again"
        fi
        ;;
    esac
}

verb=${1:-}
[ $# -gt 0 ] && shift
case $verb in
-h | --help | help) usage ;;
up | down)
    need_root
    lock
    $verb "$@"
    ;;
status)
    need_root
    status
    ;;
run) run "$@" ;;
env) print_env ;;
kill | revive | partition | heal)
    need_root
    lock
    change "$verb" "$@"
    ;;
_node) node_main "$@" ;;
*)
    usage >&2
    exit 2
    ;;
esac
