# Whatever goes wrong, a run ends by itself: it recovers, with the losses of a run that nothing
# happened to, or it ends with an exit code and a line that says why. failures.sh makes a table of
# what this finds. Where another file here holds the same, the case runs in the long mode only.

load cluster.bash
load training.bash

steps=80

setup_file() {
    cluster_begin
    write_train_plan "tensor: 1, pipeline: 2, data: 2" \
        "local: /local/gtrain-test, redundancy: partner, every: 1, keep: 2, block_bytes: 65536" \
        "stall_ms: 2000, restarts: 2"
    train_undisturbed ",checkpoint.local=$here/alone,checkpoint.redundancy=none"
}

teardown_file() {
    cluster_finish
}

setup() {
    begin_test
    full=
}

teardown() {
    [ -z "$job" ] || scancel "$job" 2>/dev/null || true
    "$cluster" up >/dev/null
    [ -z "$full" ] || nsenter -t "$(first_process "$full")" -m -- umount /local/gtrain-test
    assert_nothing_left
}

covered_elsewhere() { # FILE
    [ "${GTRAIN_TEST_LONG-no}" = yes ] || skip "in the long mode; $1.bats holds it"
}

# Train on four nodes and so many spares in the background.
train_on() { # SPARES PLAN-VALUES SRUN-ARGS...
    start_training $((4 + $1)) "$1" "${@:2}"
}

# ---- what happened, and how long it took ----

# The moment of the failure; then make it.
strike() { # CMD...
    date +%s.%N >"$dir/struck"
    "$@" >/dev/null
}

row() { # WHAT OUTCOME SECONDS STEPS-AGAIN
    [ -z "${GTRAIN_FAILURES_ROWS:-}" ] || echo "| $1 | $2 | $3 | $4 |" >>"$GTRAIN_FAILURES_ROWS"
}

# Steps that were complete before the failure, as rank 0 saw it, and were computed again.
steps_again() {
    sed -n 's/.*"step":\([0-9]*\),.*"time":\([0-9.]*\)}.*/\1 \2/p' "$dir/metrics.jsonl" |
        awk -v struck="$(cat "$dir/struck")" '
            $2 <= struck { done[$1] = 1 }
            $2 > struck && $1 in done { again[$1] = 1 }
            END { print length(again) }'
}

# Seconds from the failure to the first step of a later launch or generation.
seconds_to_go_on() {
    sed -n 's/.*"generation":\([0-9]*\),"epoch":\([0-9]*\),"time":\([0-9.]*\)}.*/\2 \1 \3/p' \
        "$dir/metrics.jsonl" | awk -v struck="$(cat "$dir/struck")" '
        { key = $1 * 1000000 + $2 }
        $3 <= struck && key > before { before = key }
        $3 > struck && key > before && !after { after = $3 }
        END { if (after) printf "%.1f", after - struck; else print "-" }'
}

# The run got over it, and computed what it would have without us.
recovers() { # WHAT OUTCOME LINE-OF-THE-LOG [EPOCH GENERATION]
    local status=0
    [ "$run_steps" != "$endless" ] || wait_for 40 goes_on "${4:-1}" "${5:-2}" || show
    stop_training || show
    wait $bounded || status=$?
    [ $status = 0 ] || { show || true; echo "srun ended with $status"; return 1; }
    same_losses "$dir" || show
    expect_match "$(cat "$dir/coordinator.log")" "$3"
    row "$1" "$2" "$(seconds_to_go_on)" "$(steps_again)"
}

# Three steps are complete that began after the failure.
three_more() {
    at_step $((struck_at + 4))
}

# It went on as if nothing had happened.
shrugs_off() { # WHAT
    local status=0 struck_at
    struck_at=$(newest_step)
    wait_for 40 three_more || show
    stop_training || show
    wait $bounded || status=$?
    [ $status = 0 ] || { show || true; echo "srun ended with $status"; return 1; }
    same_losses "$dir" || show
    expect "generations" "$(grep -c 'generation [0-9]* starts' "$dir/coordinator.log")" 1 || show
    row "$1" "goes on as if nothing had happened" 0 "$(steps_again)"
}

# It ended, and not as if all were well, and no process of it is left.
ends_within() { # SECONDS WHAT OUTCOME
    wait_for "$1" ended || show
    assert_nothing_left
    local status=0 seconds
    seconds=$(awk -v t="$(date +%s.%N)" '{ printf "%.1f", t - $1 }' "$dir/struck")
    wait $bounded || status=$?
    [ $status != 0 ] || { show || true; echo "srun said that all went well"; return 1; }
    row "$2" "$3" "$seconds" "-"
}

# The next launch goes on from what was committed.
goes_on_with_the_next_launch() {
    train_on 1 ""
    wait_for 40 goes_on 2 1 || show
    stop_training || show
    wait $bounded || show
    same_losses "$dir" || show
}

# ---- processes of ours and of Slurm ----

# The first process of a node, as the host sees it.
first_process() { # NODE
    local pid
    read -r pid _ <"${SLURM_CONF%/etc/slurm.conf}/run/$1"
    echo "$pid"
}

slurmd_of() { # NODE
    local p
    for p in $(cat /proc/"$(first_process "$1")"/task/*/children); do
        [ "$(cat "/proc/$p/comm")" = slurmd ] && echo "$p" && return 0
    done
    return 1
}

# ---- a worker that stays where it is ----

# Overwrite an instruction by a jump to itself: who comes there computes for ever.
spin_at() { # PID ADDRESS
    case $(uname -m) in
    x86_64) printf '\xeb\xfe' ;;
    aarch64) printf '\x00\x00\x00\x14' ;;
    *) return 1 ;;
    esac | dd of="/proc/$1/mem" bs=4 seek="$2" oflag=seek_bytes conv=notrunc status=none
}

# Make it stay in a function of ours, the next time it comes there.
spin_in() { # PID FUNCTIONS (a regular expression)
    local file base at found=no
    while read -r base file; do
        while read -r at _; do
            spin_at "$1" $((0x$base + 0x$at))
            found=yes
        done < <(nm "/proc/$1/root$file" 2>/dev/null | grep -E " [tT] $2$")
    done < <(sed -n 's,^\([0-9a-f]*\)-[^ ]* [^ ]* 00000000 [^/]* \(/.*gtrain.*\),\1 \2,p' "/proc/$1/maps")
    [ $found = yes ] || { echo "no function $2"; return 1; }
}

# Nothing completes any more.
stands_still() {
    local before
    before=$(newest_step)
    sleep 0.4
    [ "$(newest_step)" = "$before" ]
}

# Kill the node of rank 1 while its worker is in this function.
killed_in() { # WHAT FUNCTIONS
    case $(uname -m) in x86_64 | aarch64) ;; *) skip "no jump to itself known here" ;; esac
    train_on 1 ,resilience.stall_ms=20000
    wait_for 20 at_step 5
    spin_in "$(worker_of 1)" "$2"
    wait_for 10 stands_still
    strike "$cluster" kill "$(node_of 1)"
    recovers "a node is killed: $1" "a spare takes its ranks" "takes over rank 1"
}

# ---- workers ----

@test "a worker is killed, or crashes" {
    covered_elsewhere takeover
    local how
    for how in KILL SEGV; do
        rm -rf "$dir"
        mkdir "$dir"
        train_on 1 ""
        wait_for 20 at_step 5
        strike kill -$how "$(worker_of 1)"
        recovers "a worker gets SIG$how" "started again on its node" "again on the same node"
    done
}

@test "a worker is stopped by a signal" {
    covered_elsewhere takeover
    train_on 1 ""
    wait_for 20 at_step 8
    strike kill -STOP "$(worker_of 2)"
    recovers "a worker gets SIGSTOP" "found out and started again on its node" \
        "rank 2 on node n[0-9] hangs .*it is stopped by a signal"
}

# On a machine so busy that a loop gets no processor, it does not look like one.
@test "a worker computes for ever" {
    case $(uname -m) in x86_64 | aarch64) ;; *) skip "no jump to itself known here" ;; esac
    train_on 1 ""
    wait_for 20 at_step 8
    spin_in "$(worker_of 2)" 'cpu_adamw_.*'
    strike true
    recovers "a worker is in an endless loop" "found out and started again on its node" \
        "rank 2 on node n[0-9] hangs .*(it computes, while the others wait|it is the furthest behind)"
}

# ---- nodes ----

@test "an agent is killed" {
    train_on 1 ""
    wait_for 20 at_step 5
    strike kill -KILL "$(agent_of 1)"
    recovers "an agent gets SIGKILL" "a spare takes its ranks" "takes over rank"
}

@test "a node is killed while the run starts" {
    train_on 1 ""
    wait_for 20 test -e "$dir/placement.txt"
    strike "$cluster" kill "$(node_of 1)"
    recovers "a node is killed: start-up" "a spare takes its ranks" "takes over rank 1"
}

@test "a node is killed in the forward pass" {
    killed_in "forward pass" 'cpu_attention_forward_.*'
}

@test "a node is killed in the backward pass" {
    killed_in "backward pass" 'cpu_attention_backward_.*'
}

@test "a node is killed in the optimizer" {
    killed_in "optimizer" 'cpu_adamw_.*'
}

@test "a node is killed while it commits a checkpoint" {
    killed_in "commit of a checkpoint" log_append
}

@test "a node is killed after the last step" {
    run_steps=$steps
    train_on 1 ,resilience.stall_ms=20000
    wait_for 20 at_step 5
    spin_in "$(worker_of 1)" keeper_flush
    wait_for 20 at_step $((steps - 1))
    wait_for 10 stands_still
    strike "$cluster" kill "$(node_of 1)"
    recovers "a node is killed: after the last step" "a spare takes its ranks" "takes over rank 1"
}

@test "a node is killed during another's recovery" {
    train_on 2 ""
    wait_for 20 at_step 5
    strike "$cluster" kill "$(node_of 1)"
    wait_for 10 grep -q "generation 2 starts" "$dir/coordinator.log"
    "$cluster" kill "$(node_of 2)" >/dev/null
    recovers "a node is killed: another's recovery (two spares)" "spares take both nodes' ranks" \
        "takes over rank 2" 1 3
}

@test "two nodes at once" {
    covered_elsewhere takeover
    train_on 2 ""
    wait_for 20 at_step 5
    strike "$cluster" kill "$(node_of 1)" "$(node_of 2)"
    recovers "two nodes at once, two spares" "spares take both nodes' ranks" "takes over rank"
}

@test "a node and its partner at once" {
    covered_elsewhere takeover
    train_on 2 ",checkpoint.shared=$dir/shared,checkpoint.shared_every=1"
    wait_for 20 grep -q '"kind":"shared"' "$dir/events.jsonl"
    strike "$cluster" kill "$(node_of 1)" "$(node_of 3)"
    recovers "a rank and its partner at once, two spares" "the shared folder has their state" \
        "takes over rank"
}

@test "the node of rank 0" {
    train_on 1 ""
    wait_for 20 at_step 5
    strike "$cluster" kill "$(node_of 0)"
    recovers "the node of rank 0" "a spare takes its ranks" "takes over rank 0"
}

@test "a node is cut off, and the network heals" {
    only_namespaces network
    train_on 1 ""
    wait_for 20 at_step 5
    local node begin commits
    node=$(node_of 3)
    strike "$cluster" partition "$node"
    wait_for 20 grep -q "generation 2 goes on" "$dir/coordinator.log"
    "$cluster" heal "$node" >/dev/null
    recovers "a node is cut off and comes back" "a spare takes its ranks; it is sent away" \
        "node $node is lost .*silent"
    # Nothing that its old worker did after the cut counts, not even on its own disk.
    begin=$(sed -n 's/.*generation 2 goes on from step \([0-9]*\):.*/\1/p' "$dir/coordinator.log")
    commits=$(cat "${SLURM_CONF%/etc/slurm.conf}/nodes/$node/local/gtrain-test"/*/"$(run_id)".*.commits)
    expect "the newest checkpoint that $node knows is not newer than where it was left" \
        "$(sed -n 's/.* generation=1 step=\([0-9]*\) .*/\1/p' <<<"$commits" | awk -v b="$begin" '$1 > b' | wc -l)" 0
    expect "records of the generation that it missed" "$(grep -c ' generation=2 ' <<<"$commits")" 0
    [ "$(grep -c ' generation=1 ' <<<"$commits")" -gt 0 ]
}

# ---- srun, the coordinator, Slurm ----

@test "srun is killed" {
    train_on 1 ""
    wait_for 20 at_step 5
    strike kill -KILL "$(srun_of $bounded)"
    ends_within 30 "srun gets SIGKILL" "a clear end; the next launch goes on from the last checkpoint"
    goes_on_with_the_next_launch
}

@test "srun is told to end" {
    covered_elsewhere signals
    train_on 1 ""
    wait_for 20 at_step 5
    strike kill -TERM "$(srun_of $bounded)"
    ends_within 30 "srun gets SIGTERM" "a clear end; the next launch goes on from the last checkpoint"
    goes_on_with_the_next_launch
}

@test "the coordinator is killed" {
    covered_elsewhere signals
    train_on 1 ""
    wait_for 20 at_step 5
    strike kill -KILL "$(coordinator_of "$(srun_of $bounded)")"
    ends_within 60 "the coordinator gets SIGKILL" "a clear end"
}

@test "Slurm's controller is down while a spare takes over" {
    only_namespaces processes
    train_on 1 ""
    wait_for 20 at_step 5
    kill -TERM "$(first_process slurmctld)"
    strike kill -KILL "$(first_process "$(node_of 1)")"
    wait_for 20 grep -q "generation 2 goes on" "$dir/coordinator.log"
    fails grep -q UP <<<"$(scontrol ping)"
    "$cluster" up >/dev/null
    recovers "a node is killed, slurmctld is down" "a spare takes its ranks" "takes over rank 1"
}

@test "slurmd starts again under a run" {
    only_namespaces slurmd
    local node
    train_on 1 ""
    wait_for 20 at_step 5
    node=$(node_of 1)
    strike kill -KILL "$(slurmd_of "$node")"
    wait_for 10 slurmd_of "$node"
    shrugs_off "slurmd is killed and starts again"
}

# Slurm stops and wakes the nodes one after the other; on a busy machine that takes seconds.
@test "a job is suspended, and resumed" {
    train_on 1 ,resilience.patience_ms=5000,resilience.stall_ms=5000
    wait_for 20 at_step 5
    local suspended before
    suspended=$(squeue -h -n "$name" -o %A)
    strike scontrol suspend "$suspended"
    wait_for 10 stands_still
    # Longer than the patience and the deadline for a step.
    sleep 6
    before=$(newest_step)
    sleep 0.5
    expect "steps while suspended" "$(newest_step)" "$before"
    scontrol resume "$suspended"
    shrugs_off "scontrol suspend, and resume after 7 s"
}

# Submit the training as a batch job: $job.
submit() { # SPARES PLAN-VALUES
    cat >"$dir/job.sh" <<END
#!/bin/bash
#SBATCH --gtrain-plan=$here/train.yaml,training.steps=$run_steps$2 --gtrain-spares=$1 --gtrain-dir=$dir
srun -u $gtrain train
END
    job=$(sbatch --parsable --open-mode=append -o "$dir/out" -N$((4 + $1)) --ntasks-per-node=1 "$dir/job.sh")
}

requeued() {
    scontrol show job -o "$job" | grep -q "Restarts=1 "
}

# The job has ended well, and computed what it would have without us.
job_recovers() { # WHAT OUTCOME
    wait_for 60 goes_on 2 1 || show
    stop_training
    wait_for 60 gone "$job" || show
    same_losses "$dir" || show
    row "$1" "$2" "$(seconds_to_go_on)" "$(steps_again)"
}

@test "the batch host is killed" {
    covered_elsewhere requeue
    submit 1 ",checkpoint.shared=$dir/shared,checkpoint.shared_every=1"
    wait_for 40 at_step 5
    strike "$cluster" kill "$(scontrol show job -o "$job" | sed -n 's/.* BatchHost=\([^ ]*\).*/\1/p')"
    wait_for 40 requeued || show
    # Slurm waits for the host to confirm the job's end; it would give up after SlurmdTimeout.
    "$cluster" up >/dev/null
    job_recovers "the batch host is killed (sbatch; it comes back at once, else SlurmdTimeout more)" \
        "an agent that is left has the job requeued"
}

# ---- disks, old files, strangers ----

# Leave nothing of a node's disk where checkpoints go.
fill_disk() { # NODE
    nsenter -t "$(first_process "$1")" -m -- sh -c 'mkdir -p /local/gtrain-test &&
        mount -t tmpfs -o size=64k none /local/gtrain-test &&
        ! head -c 1M /dev/zero >/local/gtrain-test/full' 2>/dev/null
}

@test "the disk of a spare is full when it takes over" {
    only_namespaces disks
    local lost
    train_on 2 ""
    wait_for 20 at_step 5
    # A lost node's place goes to the spare under its own switch, if there is one.
    full=$(awk '$1 == "spare" { print $2 }' "$dir/placement.txt" | head -n 1)
    lost=$(awk -v at="$(awk -v n="$full" '$2 == n { sub(/[^.]*$/, "", $3); print $3 }' "$dir/placement.txt")" \
        'index($3, at) == 1 && $1 ~ /^[1-9]-/ { print $2 }' "$dir/placement.txt" | head -n 1)
    fill_disk "$full"
    strike "$cluster" kill "$lost"
    recovers "a node is killed, a spare's disk is full (two spares)" "the other spare takes its ranks" \
        "node $full is lost .*cannot go on there"
}

@test "a node is back with the files of an older launch" {
    local node spare
    train_on 1 "" -w n0,n1,n2,n3,n4
    wait_for 20 at_step 5
    spare=$(awk '$1 == "spare" { print $2 }' "$dir/placement.txt")
    node=$(node_of 2)
    strike "$cluster" kill "$node"
    wait_for 20 grep -q "generation 2 goes on" "$dir/coordinator.log"
    wait_for 20 at_step 20
    kill -TERM "$(srun_of $bounded)"
    wait $bounded || true
    assert_nothing_left
    "$cluster" up >/dev/null
    strike true
    # On the four nodes that began, without the spare that stood in.
    train_on 0 "" -w "$(printf '%s\n' n0 n1 n2 n3 n4 | grep -vx "$spare" | paste -sd,)"
    recovers "a node is back with files of an older launch" \
        "they count for nothing: the newest checkpoint is restored" "generation 1 starts" 2 1
}

@test "strangers on the coordinator's port" {
    covered_elsewhere signals
    local port i
    train_on 1 ""
    wait_for 20 at_step 5
    port=$(ss -Hltnp | sed -n "s/.*:\([0-9]*\) .*pid=$(coordinator_of "$(srun_of $bounded)"),.*/\1/p" |
        head -n 1)
    [ -n "$port" ]
    strike true
    for i in $(seq 100); do
        exec 7<>"/dev/tcp/127.0.0.1/$port" || true
        head -c 4096 /dev/urandom >&7 2>/dev/null || true
        [ $((i % 2)) = 0 ] || exec 7>&-
    done
    shrugs_off "100 strangers on the coordinator's port"
    exec 7>&-
}

# ---- programs that are not ours ----

@test "a program with a checkpoint of its own goes on from it" {
    cat >"$dir/program" <<'END'
#!/bin/sh
# Each rank counts, keeps how far it is as a checkpoint of its own, and waits for the others.
cd "$1" || exit
i=0
[ ! -e own.$RANK ] || read -r i <own.$RANK
echo "$i $GTRAIN_GENERATION $RANK" >>began
while [ $i -lt 100 ]; do
    [ $i -lt 50 ] || until [ -e struck ]; do sleep 0.02; done
    i=$((i + 1))
    echo $i >own.$RANK.new && mv own.$RANK.new own.$RANK
    for r in 0 1 2 3; do
        until read -r other <own.$r && [ "$other" -ge $i ]; do sleep 0.02; done 2>/dev/null
    done
done
END
    chmod 755 "$dir/program"
    bounded srun -N5 --ntasks-per-node=1 --gtrain-plan="$here/train.yaml" --gtrain-spares=1 \
        --gtrain-dir="$dir" "$dir/program" "$dir" >"$dir/out" 2>&1 3>&- &
    bounded=$!
    wait_for 20 eval '[ "$(cat "$dir/own.0")" -ge 20 ]'
    strike "$cluster" kill "$(node_of 1)"
    wait $bounded || show
    expect "how far each rank came" "$(cat "$dir"/own.?)" "$(yes 100 | head -n 4)"
    expect "ranks of the second generation" "$(awk '$2 == 2 { print $3 }' "$dir/began" | sort)" \
        "$(seq 0 3)"
    expect "ranks that began from nothing then" "$(awk '$2 == 2 && $1 < 19' "$dir/began")" ""
    row "a node is killed under another program" "all ranks start again, a spare among them" - \
        "from its own checkpoint"
}
