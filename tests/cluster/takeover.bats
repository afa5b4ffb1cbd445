# Taking over inside the step: whatever dies, the run ends by itself, and its losses are those of a run
# that nothing happened to.

load cluster.bash
load training.bash

steps=80

write_plan_with() { # WHERE-CHECKPOINTS-GO
    write_train_plan "tensor: 1, pipeline: 2, data: 2" "$1, keep: 2, block_bytes: 65536" \
        "stall_ms: 2000, restarts: 2"
}

setup_file() {
    cluster_begin
    write_plan_with "local: /local/gtrain-test, redundancy: partner, every: 1"
    train_undisturbed ",checkpoint.local=$here/alone,checkpoint.redundancy=none"
}

teardown_file() {
    cluster_finish
}

setup() {
    write_plan_with "local: /local/gtrain-test, redundancy: partner, every: 1"
    begin_test
}

teardown() {
    end_test
}

# Sleep for up to 3.5 s.
random_while() {
    local ms=$((RANDOM % 3500))
    echo "after $ms ms" >>"$here/kills"
    sleep $((ms / 1000)).$(printf %03d $((ms % 1000)))
}

# In the long mode 200 kills, one in a run; else eight, two in a run: the second spare takes over from
# what the first has left. One kill costs one step that was complete, at most.
@test "nodes killed at any moment: spares take over, and no bit changes" {
    local runs=4 kills=2 i k rank node again
    [ "${GTRAIN_TEST_LONG-no}" = no ] || runs=${GTRAIN_TEST_KILLS:-200} kills=1
    RANDOM=${GTRAIN_TEST_SEED:-7}
    for i in $(seq $runs); do
        rm -rf "$dir"
        mkdir "$dir"
        run_steps=$steps # a kill after the last of them is one, too
        start_training $((4 + kills)) $kills
        # From when ranks are given out until after the last step.
        wait_for 60 test -e "$dir/placement.txt"
        rank=$((RANDOM % 4))
        for k in $(seq $kills); do
            random_while
            node=$(node_of $rank)
            # Not the partner, rank + 2: both may be gone before another copy is made.
            rank=$(((rank + RANDOM % 2) % 4))
            echo "run $i, kill $k: $node" >>"$here/kills"
            [ -z "$node" ] || "$cluster" kill "$node" >/dev/null
        done
        assert_same || { tail -n 4 "$here/kills"; return 1; }
        again=$(most_again)
        echo "again $again" >>"$here/kills"
        [ $again -le 1 ] || [ $kills -gt 1 ] || { cat "$dir/out"; tail -n 3 "$here/kills"; return 1; }
        "$cluster" up >/dev/null
    done
    [ $kills -gt 1 ] || echo "# $runs kills, by steps computed again:" \
        "$(grep again "$here/kills" | sort | uniq -c | xargs)" >&3
}

@test "two nodes at once: their partners have their files" {
    write_plan_with "local: /local/gtrain-test, redundancy: partner, every: 1, snapshots: 0"
    start_training 6 2
    wait_for 20 at_step 6
    # Of four nodes under two switches, 0 and 2 are partners, and 1 and 3.
    "$cluster" kill "$(node_of 1)" "$(node_of 2)" >/dev/null
    assert_same
    expect_match "$(cat "$dir/out")" "takes over rank"
}

@test "a node and its partner at once: the shared folder has their files" {
    write_plan_with "local: /local/gtrain-test, redundancy: partner, shared: checkpoints, shared_every: 1, every: 1, snapshots: 0"
    start_training 6 2
    wait_for 20 grep -q '"kind":"shared"' "$dir/events.jsonl"
    "$cluster" kill "$(node_of 1)" "$(node_of 3)" >/dev/null
    assert_same
    expect_match "$(cat "$dir/events.jsonl")" '"kind":"restored"'
}

@test "a killed worker is started again where it was" {
    start_training 5 1
    wait_for 20 at_step 5
    kill -KILL "$(worker_of 1)"
    wait_for 20 grep -q "generation 2 goes on" "$dir/out"
    kill -SEGV "$(worker_of 0)"
    assert_same 3
    expect "spares that are left" "$(grep -c '^spare' "$dir/placement.txt")" 1
    expect_match "$(cat "$dir/out")" "rank 1 on node n[0-9] ended with signal 9 .*again on the same node: generation 2"
    expect_match "$(cat "$dir/out")" "generation 2 goes on from step [0-9]+: detect .* in all"
}

@test "a worker that hangs is found and started again" {
    start_training 5 1
    wait_for 20 at_step 8
    kill -STOP "$(worker_of 2)"
    expect_match "$("$gtrain" status "$dir")" "^run [0-9a-f]{16}: running \(job [0-9]+, process [0-9]+ on "
    assert_same
    run "$gtrain" status "$dir"
    expect_match "$output" "^run [0-9a-f]{16}: not running$"
    expect_match "$output" "^epoch 1, generation 2, step $(newest_step), loss "
    expect_match "$output" "^3-3 +n[0-9]"
    expect_match "$output" " failure +rank 2 on node n[0-9] hangs"
    expect_match "$output" " takeover +generation 2 goes on from step"
    expect_match "$(cat "$dir/out")" \
        "rank 2 on node n[0-9] hangs after step [0-9]+: it is stopped by a signal; .*again on the same node: generation 2"
}

@test "a node cut off is replaced, and does no harm when it is back" {
    [ "$GTRAIN_CLUSTER_MODE" = namespaces ] || skip "no links to cut in plain mode"
    start_training 5 1
    wait_for 20 at_step 5
    local node
    node=$(node_of 3)
    "$cluster" partition "$node" >/dev/null
    wait_for 20 grep -q "generation 2 goes on" "$dir/out"
    "$cluster" heal "$node" >/dev/null
    assert_same
}

# Launched by Slurm, and its agent never heard of: there are nodes enough without it.
@test "a spare that does not come is not waited for, and one that comes late takes over" {
    cat >"$here/agent" <<END
#!/bin/sh
[ "\$SLURM_NODEID" != 4 ] || until [ -e $dir/come ]; do sleep 0.1; done
exec $(tr ' ' '\n' <<<"$plugin_line" | sed -n 's/^agent=//p') "\$@"
END
    chmod 755 "$here/agent"
    set_plugstack "$(sed -E "s,agent=/[^ ]*,agent=$here/agent," <<<"$plugin_line")"
    start_training 5 1 ,resilience.start_patience_ms=1000
    wait_for 20 at_step 5
    set_plugstack "$plugin_line"
    expect_match "$(cat "$dir/out")" "4 of 5 nodes have come: the run starts without the others"
    expect "spares" "$(grep -c '^spare' "$dir/placement.txt")" 0
    touch "$dir/come"
    wait_for 20 grep -q '^spare' "$dir/placement.txt"
    "$cluster" kill "$(node_of 1)" >/dev/null
    assert_same
    expect_match "$(cat "$dir/out")" "takes over rank 1: generation 2 starts"
}

@test "a rank that always fails ends the run with its exit code, soon" {
    run bounded srun -N2 --ntasks-per-node=2 --gtrain-plan="$here/plan.yaml" --gtrain-dir="$dir" \
        sh -c '[ $RANK = 2 ] && exit 7; sleep 300'
    expect "exit code" "$status" 7
    expect_match "$output" "rank 2 on node n[0-9] ended with exit code 7, 4 times"
}

@test "a program of any kind is started anew with new ranks" {
    bounded srun -N3 --ntasks-per-node=2 --gtrain-plan="$here/plan.yaml" --gtrain-spares=1 \
        --gtrain-dir="$dir" sh -c 'echo "$GTRAIN_GENERATION $RANK $MASTER_PORT $(head -c 3)" \
        >'"$dir"'/ran.$GTRAIN_GENERATION.$RANK; [ $GTRAIN_GENERATION = 2 ] || sleep 300' \
        </dev/null >"$dir/out" 2>&1 3>&- &
    bounded=$!
    wait_for 20 test -e "$dir/ran.1.0" -a -e "$dir/ran.1.1" -a -e "$dir/ran.1.2" -a -e "$dir/ran.1.3"
    "$cluster" kill "$(awk '$1 == "0-1" { print $2 }' "$dir/placement.txt")" >/dev/null
    wait $bounded
    expect "ranks of the second generation" "$(cd "$dir" && echo ran.2.*)" \
        "ran.2.0 ran.2.1 ran.2.2 ran.2.3"
    ports() {
        cut -d' ' -f3 "$dir"/ran."$1".* | sort -u
    }
    expect "ports in each generation" "$(ports 1 | wc -l) $(ports 2 | wc -l)" "1 1"
    [ "$(ports 1)" != "$(ports 2)" ]
}
