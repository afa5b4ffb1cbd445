# When a step cannot go on but its allocation can, the same srun launches it again, and no bit changes.

load cluster.bash
load training.bash

steps=60

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

# A batch job of so many nodes whose script waits for the file "go" and then runs srun with ARGS.
submit() { # NODES SRUN-ARGS...
    cat >"$dir/job.sh" <<END
#!/bin/bash
touch $dir/ready
until [ -e $dir/go ]; do sleep 0.05; done
srun -u ${*:2} --gtrain-dir=$dir/r $gtrain train
code=\$?
echo "code \$code" >>$dir/codes
exit \$code
END
    job=$(sbatch --parsable -o "$dir/out" -N"$1" --ntasks-per-node=1 --no-requeue \
        --gtrain-plan="$here/train.yaml,training.steps=$run_steps" "$dir/job.sh")
    wait_for 20 test -e "$dir/ready"
    nodes=($(scontrol show hostnames "$(squeue -h -j "$job" -o %N)"))
}

# A later launch goes on.
ends_undisturbed() { # LAUNCHES-AFTER-THE-FIRST
    wait_for 50 goes_on 2 1 || show
    stop_training
    wait_for 50 test -s "$dir/codes" || show
    expect "exit code of srun" "$(cat "$dir/codes")" "code 0" || show
    same_losses "$dir/r"
    "$gtrain" status "$dir/r" >"$dir/status"
    expect_match "$(cat "$dir/status")" "^job $job: ended, requeued 0 times, launched again $1 times"
}

@test "a node dies while Slurm launches: the step is launched on the others" {
    "$gtrain" train --local --threads 1 --plan "$here/train.yaml,training.steps=7,training.decay_steps=$steps" --dir "$dir/old" \
        >"$dir/old.out" 2>&1 3>&-
    submit 3 --gtrain-restore="$dir/old"
    "$cluster" kill "${nodes[1]}" >/dev/null
    touch "$dir/go"
    wait_for 50 goes_on 2 1 || show
    stop_training
    wait_for 50 test -s "$dir/codes" || show
    expect "exit code of srun" "$(cat "$dir/codes")" "code 0" || show
    # What was asked for still counts: nothing has been committed since.
    expect_match "$(cat "$dir/r/events.jsonl")" '"restored","step":7,' || show
    undisturbed_to "$(newest_step)"
    expect "losses from there on" "$(losses "$dir/r" | awk '$1 > 7')" \
        "$(losses "$here/undisturbed" | awk -v to="$(newest_step)" '$1 > 7 && $1 <= to')"
    expect_match "$(cat "$dir/out")" \
        "gtrain: node ${nodes[1]} did not answer while the step was launched; the step is launched again \(1 of 3"
    expect "the epoch that ended it" "$(sed -n 's/.*"epoch": *\([0-9]*\).*/\1/p' "$dir/r/run.json")" 2
}

@test "more nodes lost than spares: other nodes of the allocation join" {
    submit 3 -N2 -n2 --exclusive
    touch "$dir/go"
    wait_for 20 at_step 5
    lost=$(scontrol show hostnames "$(squeue -h -s -j "$job" -o '%i %N' | sed -n 's/.*\.0 //p')" | tail -n 1)
    "$cluster" kill "$lost" >/dev/null
    ends_undisturbed 1
    expect_match "$(cat "$dir/out")" "gtrain: node $lost is lost .*; the step is launched again"
    expect "the lost node in the placement" "$(grep -cw "$lost" "$dir/r/placement.txt")" 0
}

# Slurm has launched the step on a node that dies before its agent is heard of: srun is not told.
@test "a needed node dies before it registers: noticed soon, and the step is launched on the others" {
    local lost
    cat >"$here/agent" <<END
#!/bin/sh
if [ "\$SLURM_NODEID" = 1 ] && [ ! -e \$PWD/held ]; then
    echo "\$SLURMD_NODENAME" >\$PWD/held.new
    mv \$PWD/held.new \$PWD/held
    exec sleep 300
fi
exec $(tr ' ' '\n' <<<"$plugin_line" | sed -n 's/^agent=//p') "\$@"
END
    chmod 755 "$here/agent"
    set_plugstack "$(sed -E "s,agent=/[^ ]*,agent=$here/agent," <<<"$plugin_line")"
    submit 3 -N2 -n2 --exclusive --gtrain-plan="$here/train.yaml,training.steps=$run_steps,resilience.start_patience_ms=1000"
    touch "$dir/go"
    wait_for 20 test -e "$dir/held"
    lost=$(cat "$dir/held")
    "$cluster" kill "$lost" >/dev/null
    ends_undisturbed 1
    expect_match "$(cat "$dir/out")" "gtrain: node $lost did not answer while the step was launched; the step is launched again"
    expect "the lost node in the placement" "$(grep -cw "$lost" "$dir/r/placement.txt")" 0
}

salloc_srun() { # SRUN-ARGS...
    bounded salloc -J "$name" -Q -N2 --ntasks-per-node=1 --gtrain-plan="$here/train.yaml,training.steps=$run_steps" \
        srun -u --gtrain-dir="$dir/r" "$@" >"$dir/out" 2>&1 3>&- &
    bounded=$!
}

kill_coordinator() {
    srun=$(srun_of $bounded)
    kill -KILL "$(coordinator_of "$srun")"
}

@test "the coordinator dies: the same process launches the step again, with stdout and exit code" {
    salloc_srun --gtrain-restore=none "$gtrain" train
    wait_for 20 at_step 5
    kill_coordinator
    wait_for 40 goes_on 2 1 || show
    stop_training
    wait_for 40 ended || show
    wait $bounded || show
    same_losses "$dir/r"
    # Not from the beginning again, which is what was asked for first.
    expect_match "$(cat "$dir/r/events.jsonl")" '"restored"'
    expect_match "$(cat "$dir/out")" "^step $(newest_step): stop: asked to stop"
    expect_match "$(cat "$dir/out")" "gtrain: the step is launched again on 2 nodes"
}

@test "launches without progress are counted, and the last ends by a signal to the same process" {
    local first launch
    mkdir "$dir/up"
    salloc_srun --gtrain-plan="$here/train.yaml,resilience.relaunches=2" \
        sh -c "touch $dir/up/\$GTRAIN_EPOCH.\$RANK; cat; exec sleep 300"
    wait_for 20 test -e "$dir/up/1.0" -a -e "$dir/up/1.1"
    first=$(srun_of $bounded)
    for launch in 2 3; do
        kill_coordinator
        wait_for 20 test -e "$dir/up/$launch.0" -a -e "$dir/up/$launch.1" || show
    done
    expect "process of the third launch" "$(srun_of $bounded)" "$first"
    kill -TERM "$first"
    wait_for 20 ended || show
    fails wait $bounded
    expect "launches" "$(ls "$dir/up" | wc -l)" 6
}

@test "the bound ends a loop, and a bare srun has no second launch" {
    mkdir "$dir/up"
    salloc_srun --gtrain-plan="$here/train.yaml,resilience.relaunches=0" \
        sh -c "touch $dir/up/\$GTRAIN_EPOCH.\$RANK; exec sleep 300"
    wait_for 20 test -e "$dir/up/1.0" -a -e "$dir/up/1.1"
    kill_coordinator
    wait_for 30 ended || show
    fails wait $bounded
    expect "launches" "$(ls "$dir/up" | wc -l)" 2
    bounded srun -N2 --ntasks-per-node=1 --gtrain-plan="$here/train.yaml" --gtrain-dir="$dir/bare" \
        sh -c "touch $dir/up/bare.\$RANK; exec sleep 300" >"$dir/out" 2>&1 3>&- &
    bounded=$!
    wait_for 20 test -e "$dir/up/bare.0" -a -e "$dir/up/bare.1"
    kill_coordinator
    wait_for 30 ended || show
    fails wait $bounded
    fails grep -q "launched again" "$dir/out"
}
