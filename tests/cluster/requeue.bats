# A batch job that loses more nodes than it has spares goes back into the queue by itself, and goes on
# elsewhere with the losses of a run that nothing happened to.

load cluster.bash
load training.bash

steps=80

setup_file() {
    cluster_begin
    write_train_plan "tensor: 1, pipeline: 2, data: 1" \
        "shared: checkpoints, every: 1, keep: 2, block_bytes: 65536"
    train_undisturbed
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

# Submit a job that trains.
submit() { # NODES SPARES SBATCH-ARGS...
    cat >"$dir/job.sh" <<END
#!/bin/bash
#SBATCH --gtrain-plan=$here/train.yaml,training.steps=$run_steps --gtrain-dir=$dir/r
echo "start \$SLURM_RESTART_COUNT on \$(scontrol show hostnames | xargs)" >>$dir/starts
srun -u $gtrain train
code=\$?
echo "code \$code" >>$dir/codes
exit \$code
END
    job=$(sbatch --parsable -o "$dir/out" -N"$1" --ntasks-per-node=1 --gtrain-spares="$2" \
        "${@:3}" "$dir/job.sh")
}

started() { # TIMES
    [ "$(wc -l <"$dir/starts")" -ge "$1" ]
}

# The nodes of a start, the batch host first.
nodes_of() { # START
    sed -n "$1s/.* on //p" "$dir/starts"
}

epoch_now() {
    sed -n 's/.*"epoch": *\([0-9]*\).*/\1/p' "$dir/r/run.json"
}

# A launch after that one goes on, and the job ends when it is told to.
ends() { # EPOCH
    wait_for 60 goes_on $(($1 + 1)) 1 || show
    stop_training
    wait_for 60 gone "$job" || show
    expect "exit code of the last srun" "$(tail -n 1 "$dir/codes")" "code 0" || show
}

@test "more nodes lost than spares: the job is requeued without them, and no bit changes" {
    submit 3 1 --gtrain-restore=none
    wait_for 20 at_step 5
    local first second lost epoch
    epoch=$(epoch_now)
    first=$(nodes_of 1)
    lost=${first#* }
    "$cluster" kill "${lost% *}" "${lost#* }" >/dev/null
    wait_for 40 started 2 || show
    ends "$epoch"
    second=$(nodes_of 2)
    expect "lost nodes ($lost) in the second start ($second)" \
        "$(tr ' ' '\n' <<<"$second" | grep -cxF "${lost// /$'\n'}")" 0 || show
    same_losses "$dir/r"
    # What was asked for at first does not count again.
    expect_match "$(cat "$dir/r/events.jsonl")" '"restored"'
    "$gtrain" status "$dir/r" >"$dir/status"
    expect_match "$(cat "$dir/status")" "^job $job: ended, requeued 1 times"
    expect_match "$(cat "$dir/status")" "^newest checkpoint: step $(newest_step), "
    expect_match "$(cat "$dir/status")" "^  failed .* (${lost/ /|}): its agent is gone"
    # Slurm has begun the output anew.
    expect_match "$(cat "$dir/r/coordinator.log")" \
        "no spare is left; job $job goes back into the queue \(1 of 10 times\)"
}

@test "no requeue where the user or Slurm forbids it, and none for a signal" {
    local how
    for how in --no-requeue --gtrain-plan="$here/train.yaml,training.steps=$run_steps",resilience.requeues=0 signal; do
        rm -rf "$dir/r" "$dir/starts" "$dir/codes"
        if [ $how = signal ]; then
            submit 2 0
            wait_for 20 at_step 3
            scancel --signal=USR1 "$job.0"
        else
            submit 2 0 "$how"
            wait_for 20 at_step 3
            "$cluster" kill "$(nodes_of 1 | cut -d' ' -f2)" >/dev/null
        fi
        wait_for 40 test -s "$dir/codes" || show
        "$cluster" up >/dev/null
        wait_for 40 gone "$job" || show
        expect "starts with $how" "$(wc -l <"$dir/starts")" 1
        fails grep -qx "code 0" "$dir/codes"
        fails grep -q "goes back into the queue" "$dir/r/coordinator.log"
    done
}

@test "the batch host dies: an agent that is left requeues the job" {
    submit 3 1
    wait_for 20 at_step 5
    local host epoch
    epoch=$(epoch_now)
    host=$(nodes_of 1 | cut -d' ' -f1)
    "$cluster" kill "$host" >/dev/null
    requeued() {
        scontrol show job -o "$job" | grep -E "Restarts=1 .*ExcNodeList=$host "
    }
    wait_for 40 requeued || show
    # Slurm waits for the host to confirm the job's end; it would give up after SlurmdTimeout.
    "$cluster" up >/dev/null
    wait_for 40 started 2 || show
    ends "$epoch"
    fails grep -qw "$host" <<<"$(nodes_of 2)"
    same_losses "$dir/r"
    expect "requeues that are counted" "$(sed -n 's/.*"requeues": *\([0-9]*\).*/\1/p' "$dir/r/state.json")" 1
}
