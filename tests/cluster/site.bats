# What a site hears of a run: its own hook for a node that has failed, and a comment on the job.

load cluster.bash
load training.bash

steps=60

setup_file() {
    cluster_begin
    write_train_plan "tensor: 1, pipeline: 2, data: 1" \
        "shared: checkpoints, every: 1, keep: 2, block_bytes: 65536"
    cp "$GTRAIN_SOURCE/contrib/on_failure.sh" "$here/hook"
    sed -i "2i echo \"\$1 \$3 \$(id -un) \$GTRAIN_RUN_DIR\" >>$here/heard" "$here/hook"
    chown root "$here/hook"
    chmod 755 "$here/hook"
}

teardown_file() {
    cluster_finish
}

setup() {
    begin_test
    cd "$dir"
    rm -f "$here/heard"
    set_plugstack "$plugin_line on_failure=$here/hook" # `cluster.sh up` writes it anew
}

teardown() {
    [ -z "${lost:-}" ] || scontrol update nodename="$lost" state=resume 2>/dev/null || true
    end_test
}

comment_of() { # JOB
    scontrol show job "$1" | sed -n 's/^ *Comment=\(.*[^ ]\) *$/\1/p'
}

submit() { # SBATCH-ARGS...
    printf '#!/bin/sh\nsrun -u --gtrain-plan=%s --gtrain-dir=%s/r %s train\necho $? >%s/code\n' \
        "$here/train.yaml,training.steps=$run_steps" "$dir" "$gtrain" "$dir" \
        >"$dir/job.sh"
    job=$(sbatch --parsable -o "$dir/out" -N3 --ntasks-per-node=1 --no-requeue \
        --gtrain-plan="$here/train.yaml" --gtrain-spares=1 "$@" "$dir/job.sh")
    wait_for 30 at_step 3
}

# Its ranks are on the first two of three nodes at most; any but the batch host will do.
kill_a_node() {
    lost=$(sed -n 's/^[0-9]*-[0-9]* *\(n[0-9]*\) .*/\1/p' "$dir/r/placement.txt" |
        grep -vxF "$(squeue -h -j "$job" -o %B)" | tail -n 1)
    [ -n "$lost" ] || { cat "$dir/r/placement.txt"; return 1; }
    "$cluster" kill "$lost" >/dev/null
}

ends() {
    wait_for 60 goes_on 1 2 || show
    stop_training
    wait_for 60 test -s "$dir/code" || show
    expect "exit code of srun" "$(cat "$dir/code")" 0
}

@test "a node fails: the hook is told, Slurm's record says why, the job's comment where it stands" {
    local reason
    submit
    said() {
        comment_of "$job" | grep -q "^gtrain: epoch 1, generation 1, step [0-9]* of $endless, 1 spare"
    }
    wait_for 20 said || { comment_of "$job"; return 1; }
    kill_a_node
    wait_for 30 grep -q "hook for node $lost" "$dir/r/coordinator.log"
    reason=$(scontrol show node "$lost" | sed -n 's/^ *Reason=//p')
    ends
    expect_match "$(cat "$here/heard")" "^$lost its agent is gone $(id -un) $dir/r$"
    expect "lines" "$(wc -l <"$here/heard")" 1
    expect_match "$(cat "$dir/r/coordinator.log")" "hook for node $lost: $lost is drained, with the reason"
    expect_match "$reason" "gtrain: job $job: its agent is gone"
    last_word() {
        [ "$(comment_of "$job")" = "gtrain: epoch 1, generation 2, step $(newest_step) of $endless, ended" ]
    }
    "$gtrain" status "$job" >"$dir/status"
    expect "folder by the job's number" "$(head -n 1 "$dir/status")" "folder $dir/r"
    expect_match "$(cat "$dir/status")" "^job $job: ended"
    run "$gtrain" status 999999
    expect "status of no job" "$status" 2
    expect_match "$output" "no run folder of job 999999 is known here: name the folder"
    wait_for 10 last_word || { comment_of "$job"; return 1; }
}

@test "a hook that anybody can write is not run, and a user's own comment stays" {
    chmod o+w "$here/hook"
    submit --comment=mine
    kill_a_node
    ends
    chmod o-w "$here/hook"
    [ ! -e "$here/heard" ]
    expect_match "$(cat "$dir/r/coordinator.log")" \
        "hook for node $lost: $here/hook is not a file that only root can write"
    expect "comment" "$(comment_of "$job")" mine
}
