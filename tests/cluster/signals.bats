# How a run ends when somebody ends it, and what happens when a part of it dies.

load cluster.bash

setup_file() {
    cluster_begin
}

teardown_file() {
    cluster_finish
}

setup() {
    dir=$(mktemp -d "$here/run.XXXXXX")
    ask="--gtrain-plan=$here/plan.yaml --gtrain-dir=$dir"
}

teardown() {
    "$cluster" up >/dev/null
    assert_nothing_left
}

# A program that says that it runs, then waits; its child must go too.
waiting="touch \$0/started.\$RANK; sleep 300 & sleep 300"
waiting_alone="touch \$0/started.\$RANK; exec sleep 300"

# Start srun with that program in the background, its pid in $srun, SIGINT not ignored.
start_waiting() { # SRUN-ARGS...
    perl -e '$SIG{INT} = "DEFAULT"; exec @ARGV' timeout --foreground -k 5 100 \
        srun -N2 --ntasks-per-node=2 $ask "$@" sh -c "$waiting" "$dir" >"$dir/out" 2>&1 3>&- &
    bounded=$!
    for rank in 0 1 2 3; do
        wait_for 20 test -e "$dir/started.$rank"
    done
    srun=$(srun_of $bounded)
}

ended() {
    ! kill -0 $bounded
}

# Wait for the end of what start_waiting started; it must not be a success.
fails_within() { # SECONDS
    wait_for "$1" ended || {
        cat "$dir/out" "$dir/coordinator.log"
        squeue -s
        squeue
        return 1
    }
    fails wait $bounded
}

@test "two interrupts end the run, as with plain srun" {
    start_waiting
    # Within a second of each other, or they count as the first: this shell may be late.
    interrupted() {
        kill -INT $srun
        sleep 0.3
        kill -INT $srun
        ended
    }
    wait_for 15 interrupted
    fails_within 15
}

@test "one interrupt with --quit-on-interrupt" {
    start_waiting --quit-on-interrupt
    kill -INT $srun
    fails_within 15
}

@test "SIGTERM to srun ends the run" {
    start_waiting
    kill -TERM $srun
    fails_within 15
}

@test "SIGKILL to srun leaves nothing behind" {
    start_waiting
    kill -KILL $srun
    fails_within 15
}

@test "stop and continue" {
    bounded srun -N2 --ntasks-per-node=2 $ask \
        sh -c "touch $dir/started.\$RANK; until [ -e $dir/go ]; do sleep 0.1; done" 3>&- &
    bounded=$!
    wait_for 20 test -e "$dir/started.0"
    srun=$(srun_of $bounded)
    kill -STOP $srun
    sleep 1
    kill -CONT $srun
    touch "$dir/go"
    wait $bounded
}

@test "scancel ends the run" {
    start_waiting
    # The job of the step that runs: others may still be ending.
    scancel "$(newest_job)"
    fails_within 15
}

@test "a signal sent by scancel reaches the program" {
    bounded srun -N2 --ntasks-per-node=2 $ask sh -c \
        "trap 'touch $dir/got.\$RANK; exit 0' USR1; touch $dir/started.\$RANK; while :; do sleep 0.1; done" 3>&- &
    bounded=$!
    for rank in 0 1 2 3; do
        wait_for 20 test -e "$dir/started.$rank"
    done
    step=$(newest_job_step)
    scancel -s USR1 "$step"
    wait_for 15 ended
    wait $bounded
    expect "ranks that got it" "$(cd "$dir" && echo got.*)" "got.0 got.1 got.2 got.3"
}

# A node that the running step is on: Slurm chooses, and may still miss one that an earlier test lost.
node_of_step() {
    scontrol show hostnames "$(squeue -h -s "$(newest_job_step)" -o %N)" | tail -n 1
}

@test "a lost node: the run fails soon, and a line says which" {
    start_waiting
    node=$(node_of_step)
    "$cluster" kill "$node"
    fails_within 30
    expect_match "$(cat "$dir/out")" "gtrain: .*$node"
}

@test "a node cut off: the run fails soon, and a line says which" {
    [ "$GTRAIN_CLUSTER_MODE" = namespaces ] || skip "no links to cut in plain mode"
    start_waiting
    node=$(node_of_step)
    "$cluster" partition "$node"
    fails_within 30
    expect_match "$(cat "$dir/out")" "gtrain: .*$node"
    "$cluster" heal "$node"
}

@test "a lost coordinator: the run fails in bounded time" {
    start_waiting
    coordinator=$(coordinator_of $srun)
    [ -n "$coordinator" ]
    kill -KILL $coordinator
    fails_within 60
}

# The agent of a task of this test's run: other clusters on this machine have agents, too.
agent_of_rank() { # TASK
    local p
    for p in $(grep -lzx "SLURM_PROCID=$1" /proc/[0-9]*/environ 2>/dev/null); do
        p=${p%/environ}
        if grep -qz 'gtrain-agent$' "$p/cmdline" && grep -qzxF "$dir" "$p/cmdline"; then
            echo "${p#/proc/}"
        fi
    done 2>/dev/null
}

@test "an agent killed is a failure, not a hang" {
    # Without a child: what is left of a program whose agent is gone, only a cgroup could find.
    waiting=$waiting_alone
    start_waiting
    agent=$(agent_of_rank 2)
    [ -n "$agent" ]
    kill -KILL $agent
    fails_within 30
}

@test "strangers on the coordinator's port change nothing" {
    bounded srun -N2 --ntasks-per-node=2 $ask sh -c \
        "touch $dir/started.\$RANK; while [ ! -e $dir/go ]; do sleep 0.1; done" >"$dir/out" 2>&1 3>&- &
    bounded=$!
    for rank in 0 1 2 3; do
        wait_for 20 test -e "$dir/started.$rank"
    done
    coordinator=$(coordinator_of "$(srun_of $bounded)")
    port=$(ss -Hltnp | sed -n "s/.*:\([0-9]*\) .*pid=$coordinator,.*/\1/p" | head -n 1)
    [ -n "$port" ]
    head -c 3 /dev/urandom >"/dev/tcp/127.0.0.1/$port"
    head -c 65536 /dev/urandom >"/dev/tcp/127.0.0.1/$port" || true
    for i in $(seq 300); do
        exec 7<>"/dev/tcp/127.0.0.1/$port" || true
        # Half of them stay open for as long as this shell.
        [ $((i % 2)) = 0 ] || exec 7>&-
    done
    exec 7>&-
    touch "$dir/go"
    wait $bounded
}
