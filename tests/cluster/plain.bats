# Jobs that do not ask for gtrain: nothing may change for them.

load cluster.bash

setup_file() {
    cluster_begin
}

teardown_file() {
    cluster_finish
}

teardown() {
    set_plugstack "$plugin_line"
    assert_nothing_left
}

# What a plain job sees: its environment and the processes around it.
plain_view() {
    bounded srun -N1 -w n0 sh -c 'env | sort; echo "$0"; tr "\0" " " </proc/$PPID/cmdline; set -- $(grep -lz "^SLURM_JOB_ID=$SLURM_JOB_ID$" /proc/[0-9]*/environ 2>/dev/null); echo $#' |
        sed -E 's/^(SLURM_(JOB_ID|JOBID|TASK_PID|SRUN_COMM_PORT|LAUNCH_NODE_IPADDR|STEP_LAUNCHER_PORT|JOB_START_TIME|JOB_END_TIME))=.*/\1/; s/\[[0-9]+\./[N./'
}

@test "plain srun: same environment and processes with and without the plugin" {
    with=$(plain_view)
    set_plugstack "# none"
    without=$(plain_view)
    expect "what the job sees" "$with" "$without"
    [ -n "$with" ]
}

@test "plain srun: no child process of srun" {
    bounded srun -N1 sh -c "touch $here/started; until [ -e $here/go ]; do sleep 0.1; done" 3>&- &
    pid=$!
    wait_for 20 test -e "$here/started"
    children=$(cat /proc/"$(srun_of $pid)"/task/*/children)
    for c in $children; do
        tr '\0' ' ' <"/proc/$c/cmdline" || true # one that has ended
    done >"$here/children"
    touch "$here/go"
    wait $pid
    fails grep -E "^[^ ]*gtrain" "$here/children"
}

@test "nodes work in the root folder, wherever the cluster was brought up" {
    [ "$GTRAIN_CLUSTER_MODE" = namespaces ] || skip "nodes are processes of the host"
    read -r pid _ <"${SLURM_CONF%/etc/slurm.conf}/run/n0"
    expect folder "$(readlink "/proc/$pid/cwd")" /
}

@test "srun, sbatch and salloc list the options in --help" {
    for tool in srun sbatch salloc; do
        help=$($tool --help)
        for option in plan spares restore dir; do
            expect_match "$help" "--gtrain-$option="
        done
        expect "lines with [gtrain] in $tool --help" "$(grep -c '\[gtrain\]' <<<"$help")" 4
    done
}

@test "missing gtrain: a plain job runs, no node is drained" {
    set_plugstack "$(sed -E 's,(gtrain|agent)=/[^ ]*,\1=/nowhere/\1,g' <<<"$plugin_line")"
    out=$(bounded srun -N2 echo plain)
    expect output "$out" "$(printf 'plain\nplain')"
    expect "nodes in trouble" "$(sinfo -h -R)" ""
}

@test "missing gtrain: a job that asks is refused with a clear line before allocation" {
    set_plugstack "$(sed -E 's,(gtrain|agent)=/[^ ]*,\1=/nowhere/\1,g' <<<"$plugin_line")"
    before=$(last_job)
    for tool in "srun -N2" "sbatch -N2" "salloc -N2"; do
        run bounded $tool --gtrain-plan="$here/plan.yaml" "$here/true.sh"
        [ "$status" -ne 0 ]
        expect_match "$output" "gtrain: /nowhere/gtrain is missing"
    done
    expect "newest job" "$(last_job)" "$before"
}

@test "missing agent on the nodes: the step fails with a clear line, no node is drained" {
    set_plugstack "$(sed -E 's,agent=/[^ ]*,agent=/nowhere/agent,' <<<"$plugin_line")"
    run bounded srun -N2 --ntasks-per-node=2 --gtrain-plan="$here/plan.yaml" --gtrain-dir="$here/run" true
    [ "$status" -ne 0 ]
    expect_match "$output" "gtrain: /nowhere/agent is missing"
    expect "nodes in trouble" "$(sinfo -h -R)" ""
}

@test "missing plugin file: jobs run, no node is drained" {
    set_plugstack "optional /nowhere/gtrain.so"
    out=$(bounded srun -N2 echo plain 2>/dev/null)
    expect output "$out" "$(printf 'plain\nplain')"
    expect "nodes in trouble" "$(sinfo -h -R)" ""
}
