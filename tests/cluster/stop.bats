# A run that is told to end has its last step in a committed checkpoint, and the next launch goes on
# from there: by scancel, by the warning that sbatch --signal asks for, by a requeue of Slurm's own.

load cluster.bash
load training.bash

setup_file() {
    cluster_begin
    cat >"$here/train.yaml" <<END
model: {layers: 2, hidden: 32, ffn: 64, heads: 2, kv_heads: 2, vocab: 256}
data: {format: text, train: $here/data/train.txt}
training: {steps: $endless, warmup_steps: 4, global_batch: 4, microbatch: 2, sequence: 32, lr: 0.003}
parallel: {tensor: 1, pipeline: 2, data: 1}
checkpoint: {shared: checkpoints, every: 500, keep: 2, block_bytes: 65536}
resilience: {heartbeat_ms: 200, patience_ms: 2000}
END
}

teardown_file() {
    cluster_finish
}

setup() {
    begin_test
    cd "$dir"
}

teardown() {
    end_test
}

submit() { # SBATCH-ARGS...
    cat >"$dir/job.sh" <<END
#!/bin/bash
echo start >>$dir/starts
srun -u --gtrain-dir=$dir/r $gtrain train
echo "code \$?" >>$dir/codes
END
    job=$(sbatch --parsable -o "$dir/out" -N2 --ntasks-per-node=1 --gtrain-plan="$here/train.yaml" \
        "$@" "$dir/job.sh")
    wait_for 20 at_step 20
}

# The last step that was made is the newest that is committed.
expect_last_step_kept() {
    local last
    last=$(newest_step)
    expect_match "$("$gtrain" status "$dir/r")" "^newest checkpoint: step $last, "
    fails grep -q "launched again\|back into the queue" "$dir/r/coordinator.log"
}

not_running() {
    "$gtrain" status "$dir/r" | grep -q "^run .*: not running"
}

@test "scancel of the job: the last step is kept" {
    submit
    scancel "$job"
    wait_for 20 gone "$job"
    wait_for 10 not_running
    expect_last_step_kept
    job=
}

@test "a signal to the steps, as --signal sends it: the last step is kept, the script goes on" {
    submit
    scancel --signal=TERM "$job"
    wait_for 20 test -s "$dir/codes"
    expect "exit code of srun" "$(cat "$dir/codes")" "code 0"
    wait_for 10 not_running
    expect_last_step_kept
}

@test "a step that is cancelled and does not obey is not launched again" {
    bounded salloc -Q -N4 --ntasks-per-node=1 --gtrain-plan="$here/train.yaml" \
        sh -c "echo \$SLURM_JOB_ID >$dir/id
               exec srun -N2 -n2 --gtrain-plan=inherit --gtrain-dir=$dir/r \
                   sh -c 'trap \"\" TERM; touch $dir/up.\$RANK; while :; do sleep 0.2; done'" \
        >"$dir/out" 2>&1 3>&- &
    bounded=$!
    wait_for 20 test -e "$dir/up.0" -a -e "$dir/up.1"
    scancel "$(cat "$dir/id").0"
    wait_for 30 ended || { cat "$dir/out" "$dir/r/coordinator.log"; return 1; }
    fails wait $bounded
    expect "launches" "$(sed -n 's/.*"epoch": *\([0-9]*\).*/\1/p' "$dir/r/run.json")" 1
}

@test "long: a time limit that is near: the last step is kept" {
    [ "${GTRAIN_TEST_LONG:-}" = yes ] || skip "Slurm looks at time limits every half minute: GTRAIN_TEST_LONG=yes"
    submit -t 2 --signal=TERM@60
    wait_for 120 test -s "$dir/codes"
    expect "exit code of srun" "$(cat "$dir/codes")" "code 0"
    wait_for 10 not_running
    expect_last_step_kept
}

@test "long: a requeue by Slurm or an operator, as preemption does it: the next launch goes on" {
    [ "${GTRAIN_TEST_LONG:-}" = yes ] || skip "a requeued job waits two minutes: GTRAIN_TEST_LONG=yes"
    local kept
    submit
    scontrol requeue "$job"
    wait_for 20 not_running
    kept=$("$gtrain" status "$dir/r" | sed -n 's/^newest checkpoint: step \([0-9]*\),.*/\1/p')
    started_again() {
        scontrol update jobid="$job" starttime=now 2>/dev/null
        [ "$(wc -l <"$dir/starts")" = 2 ]
    }
    wait_for 150 started_again
    wait_for 40 goes_on 2 1 || show
    stop_training
    wait_for 100 test -s "$dir/codes"
    expect "exit code of srun" "$(tail -n 1 "$dir/codes")" "code 0"
    expect_match "$(cat "$dir/r/events.jsonl")" "\"restored\",\"step\":$kept,"
}
