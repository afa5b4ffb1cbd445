# Parity in groups of nodes: what went with a node is rebuilt from the others, and a file that turns out
# to be damaged is taken from wherever it is well.

load cluster.bash
load training.bash

steps=60

# No replicas: they would stand in for each other.
write_plan_with() { # DEGREES CHECKPOINT
    write_train_plan "$1" "$2, snapshots: 0, keep: 2, block_bytes: 65536" "stall_ms: 2000, restarts: 2"
}

setup_file() {
    cluster_begin
    write_plan_with "tensor: 2, pipeline: 2" "local: /local/gtrain-test, redundancy: xor:4, every: 1"
    train_undisturbed ",checkpoint.local=$here/alone,checkpoint.redundancy=none"
}

teardown_file() {
    cluster_finish
}

setup() {
    begin_test
}

teardown() {
    end_test
}

@test "a lost node's file is rebuilt on the spare" {
    only_namespaces disks
    start_training 5 1
    wait_for 20 at_step 6
    "$cluster" kill "$(node_of 2)" >/dev/null
    assert_same
    expect_match "$(cat "$dir/events.jsonl")" "1 of 4 files were rebuilt from their groups"
}

@test "two nodes killed at any moment: no bit changes" {
    [ "${GTRAIN_TEST_LONG-no}" = yes ] || skip "only with GTRAIN_TEST_LONG=yes"
    local i k wait_ms node
    RANDOM=${GTRAIN_TEST_SEED:-7}
    for i in $(seq "${GTRAIN_TEST_KILLS:-100}"); do
        rm -rf "$dir"
        mkdir "$dir"
        run_steps=$steps
        start_training 6 2 ,checkpoint.redundancy=rs:2+2
        wait_for 60 test -e "$dir/placement.txt"
        for k in 1 2; do # the second may come while files are rebuilt
            wait_ms=$((RANDOM % 2500))
            sleep $((wait_ms / 1000)).$(printf %03d $((wait_ms % 1000)))
            node=n$((RANDOM % 6))
            echo "kill $i.$k: $node after $wait_ms ms" >>"$here/kills"
            "$cluster" kill $node >/dev/null
        done
        assert_same || {
            tail -n 2 "$here/kills"
            tail -n 30 "${SLURM_CONF%/etc/slurm.conf}"/ctld/log "${SLURM_CONF%/etc/slurm.conf}"/nodes/n*/log
            return 1
        }
        "$cluster" up >/dev/null
    done
}

@test "two lost nodes of a group that keeps two" {
    only_namespaces disks
    start_training 6 2 ,checkpoint.redundancy=rs:2+2
    wait_for 20 at_step 6
    "$cluster" kill "$(node_of 0)" "$(node_of 3)" >/dev/null
    assert_same
    expect_match "$(cat "$dir/events.jsonl")" "2 of 4 files were rebuilt from their groups"
}

@test "groups that the nodes do not give are refused before anything is allocated" {
    run bounded srun -N2 --ntasks-per-node=2 --gtrain-plan="$here/train.yaml" --gtrain-dir="$dir" "$gtrain" train
    expect "exit code" "$status" 1
    expect_match "$output" "train.yaml:6:[0-9]+: checkpoint.redundancy is xor:4, which needs ranks on 4 nodes, but 4 ranks are to be on 2"
}

# One bit of rank 1's newest file, on its own node.
flip_on() { # NODE
    srun -N1 -n1 -w "$1" sh -c 'f=$(ls /local/gtrain-test/"$1"/*.s8.r1.safetensors)
        at=$(($(stat -c %s "$f") / 2))
        byte=$(od -An -tu1 -j$at -N1 "$f")
        printf "$(printf "\\%o" $((byte ^ 4)))" | dd of="$f" bs=1 seek=$at conv=notrunc status=none' sh "$(run_id)"
}

# Run to step 8, damage a file, and go on to the end.
damage_and_go_on() { # NODES PLAN-CHANGES
    local first
    bounded srun -N"$1" --ntasks-per-node=1 --gtrain-plan="$here/train.yaml$2,training.steps=8" \
        --gtrain-dir="$dir" "$gtrain" train >"$dir/out" 2>&1 3>&-
    first=$(node_of 1)
    flip_on "$first"
    srun_nodes=$(awk '$1 ~ /^[0-9]/ { print $2 }' "$dir/placement.txt" | paste -sd,)
    bounded srun -N"$1" -w "$srun_nodes" --ntasks-per-node=1 --gtrain-plan="$here/train.yaml$2" \
        --gtrain-dir="$dir" "$gtrain" train >"$dir/out" 2>&1 3>&-
    run_steps=$steps
    same_losses "$dir"
    expect_match "$(cat "$dir/events.jsonl")" "s8.r1.safetensors.*damaged"
    expect_match "$(cat "$dir/events.jsonl")" '"kind":"restored","step":8,'
}

@test "a damaged file is taken from the partner's copy" {
    only_namespaces disks
    damage_and_go_on 4 ,checkpoint.redundancy=partner
}

@test "a damaged file is rebuilt from its group" {
    damage_and_go_on 4 ""
    expect_match "$(cat "$dir/events.jsonl")" "1 of 4 files were rebuilt from their groups"
}
