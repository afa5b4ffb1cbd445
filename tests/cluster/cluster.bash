# cluster.bash - what the tests on a real Slurm share. Loaded by every .bats file here.
#
# They run on the cluster that contrib/cluster.sh brings up (`up` on one that is up only mends it), in
# a folder that host and nodes share, and each test ends with a look whether a process was left.

# Make a folder of our own, settings as cluster.sh prints them.
cluster_begin() {
    cluster=${GTRAIN_SOURCE:-$BATS_TEST_DIRNAME/../..}/contrib/cluster.sh
    "$cluster" up >/dev/null
    eval "$("$cluster" env)"
    here=$(mktemp -d "$GTRAIN_CLUSTER_SHARED/test.XXXXXX")
    chmod 755 "$here"
    mkdir "$here/data"
    yes "the quick brown fox jumps over the lazy dog" | head -c 65536 >"$here/data/train.txt"
    write_plan "$here/plan.yaml" 2 2 1
    printf '#!/bin/sh\ntrue\n' >"$here/true.sh"
    chmod 755 "$here/true.sh"
    plugstack=${SLURM_CONF%/slurm.conf}/plugstack.conf
    plugin_line=$(cat "$plugstack")
    gtrain=$(tr ' ' '\n' <"$plugstack" | sed -n 's/^gtrain=//p')
    export cluster here plugstack plugin_line gtrain
    export XDG_STATE_HOME=$here/state # jobs leave a line there, not in our home
    export GTRAIN_CLUSTER_MODE GTRAIN_CLUSTER_NODES SLURM_CONF
}

cluster_finish() {
    [ -n "${here:-}" ] || return 0 # cluster_begin failed
    set_plugstack "$plugin_line"
    rm -rf "$here"
}

# For a test that takes what only nodes with namespaces of their own have.
only_namespaces() { # WHAT
    [ "$GTRAIN_CLUSTER_MODE" = namespaces ] || skip "in plain mode nodes share this host's $1"
}

# A plan for a world of TENSOR x PIPELINE x DATA ranks.
write_plan() { # FILE TENSOR PIPELINE DATA
    cat >"$1" <<END
model: {layers: 2, hidden: 16, ffn: 32, heads: 2, kv_heads: 2, vocab: 256}
data: {format: text, train: $here/data/train.txt}
training: {steps: 2, global_batch: 4, microbatch: 1, sequence: 16, lr: 0.001}
parallel: {tensor: $2, pipeline: $3, data: $4}
resilience: {heartbeat_ms: 200, patience_ms: 2000}
END
}

set_plugstack() {
    echo "$1" >"$plugstack.test"
    mv "$plugstack.test" "$plugstack"
}

# Processes of jobs, wherever they run, one line each. On a node nothing but its first process and
# its slurmd has any business when no job runs.
strays() {
    local p pid ns
    for p in $(grep -lzxF "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ 2>/dev/null); do
        { tr '\0' ' ' <"${p%environ}cmdline"; } 2>/dev/null | grep -E '^[^ ]*gtrain(-agent)? |^slurmstepd'
    done
    [ "$GTRAIN_CLUSTER_MODE" = namespaces ] || return 0
    for p in "${SLURM_CONF%/etc/slurm.conf}"/run/n*; do
        read -r pid _ <"$p"
        ns=$(readlink "/proc/$pid/ns/pid") && ns=${ns//[^0-9]/} || continue
        stat -c %N /proc/[0-9]*/ns/pid 2>/dev/null | sed -n "s,^'/proc/\([0-9]*\)/.*$ns.*,\1,p"
    done | while read -r pid; do
        # The first process of a node is a shell that runs cluster.sh.
        { tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -Ev '^slurmd |cluster\.sh _node|^$'
    done
}

# Fail if something of a job still runs, on the host or on a node, 10 s after it ended; end it, so
# that the next test starts clean.
assert_nothing_left() {
    local i left
    for i in $(seq 50); do
        left=$(strays) || true # nothing found
        [ -z "$left" ] && return 0
        sleep 0.2
    done
    echo "left behind:"
    cut -c 1-160 <<<"$left"
    scancel -u "$(id -un)"
    return 1
}

# Run a command until it succeeds, for at most three times so many seconds: they are those of a
# machine that has nothing else to do.
wait_for() { # SECONDS CMD...
    local until=$((SECONDS + 3 * $1))
    shift
    while ! "$@" >/dev/null 2>&1; do
        if [ $SECONDS -gt $until ]; then
            echo "did not come true: $*"
            return 1
        fi
        sleep 0.1
    done
}

# The number the next job would get is not to be had, but no job may be newer than this one.
last_job() {
    scontrol show job --oneliner 2>/dev/null | sed -n 's/^JobId=\([0-9]*\) .*/\1/p' | sort -n | tail -n 1
}

# The srun at the end of a chain of shells and timeouts.
srun_of() { # PID
    local p=$1 list
    while [ -n "$p" ] && [ "$(cat "/proc/$p/comm" 2>/dev/null)" != srun ]; do
        list=$(cat "/proc/$p/task/$p/children" 2>/dev/null)
        p=${list%% *}
    done
    echo "$p"
}

# The coordinator that an srun started.
coordinator_of() { # PID-OF-SRUN
    local p
    for p in $(cat /proc/"$1"/task/*/children); do
        if grep -qzx coordinate "/proc/$p/cmdline"; then
            echo "$p"
        fi
    done
}

# Jobs that run or wait.
running() { # JOB
    [ "$(squeue -h -j "$1" -o %T)" = RUNNING ]
}

# Of what was started last, as a test that is alone knows; an earlier one's may still be ending.
newest_job() {
    squeue -h -o %A | sort -n | tail -n 1
}

newest_job_step() {
    squeue -h -s -o %i | grep '\.[0-9]*$' | sort -t . -k 1n -k 2n | tail -n 1
}

gone() { # JOB
    [ -z "$(squeue -h -j "$1" -o %T 2>/dev/null)" ]
}

# srun for a test: it ends within minutes, whatever happens; on a machine that does much else one takes
# more than a minute.
bounded() {
    timeout --foreground -k 5 180 "$@"
}

# A command that has to fail. (Bash ends a test for no command behind a bare "!".)
fails() { # CMD...
    if "$@"; then
        echo "did not fail: $*"
        return 1
    fi
}

expect() { # WHAT GOT WANTED
    [ "$2" = "$3" ] && return 0
    echo "$1: - is what should be, + is what is"
    diff -u <(echo "$3") <(echo "$2") | tail -n +3
    return 1
}

expect_match() { # TEXT REGEX
    grep -Eq -- "$2" <<<"$1" && return 0
    printf 'no line matches %s in\n%s\n' "$2" "$1"
    return 1
}
