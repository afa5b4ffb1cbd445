# Going on from memory: a plan that writes no checkpoint at all loses nothing to a lost process or node,
# and does at most one completed step again. Without replicas: the second copies are the partners'.

load cluster.bash
load training.bash

steps=80

write_plan_with() { # CHECKPOINT
    write_train_plan "tensor: 2, pipeline: 2, data: 1" "$1" "stall_ms: 2000, restarts: 2"
}

setup_file() {
    cluster_begin
    write_plan_with "every: 0"
    train_undisturbed
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

# And so many lines at most stand there twice.
assert_same_again() { # TWICE [GENERATION]
    local twice
    assert_same "${2:-2}"
    twice=$(sed -n 's/.*"step":\([0-9]*\),.*/\1/p' "$dir/metrics.jsonl" | sort | uniq -d | wc -l)
    [ "$twice" -le "$1" ] || { echo "$twice steps were done again, not $1 at most"; return 1; }
}

@test "killed workers, one after the other: one step each at most" {
    start_training 4 0
    wait_for 20 at_step 7
    kill -KILL "$(worker_of 2)"
    wait_for 20 grep -q "generation 2 goes on" "$dir/out"
    kill -KILL "$(worker_of 0)" # who writes the lines
    assert_same_again 2 3
    expect_match "$(cat "$dir/events.jsonl")" '"restored",.*from the nodes. memory'
}

@test "a lost node: one step at most" {
    start_training 5 1
    wait_for 20 at_step 10
    "$cluster" kill "$(node_of 1)" >/dev/null
    assert_same_again 1
    expect_match "$(cat "$dir/events.jsonl")" '"restored",.*from the nodes. memory'
}

# As often as they pay: on a busy machine of two cores that is seldom.
@test "snapshots: auto, a lost node: back to the newest that there is" {
    local due begin
    start_training 5 1 ,checkpoint.snapshots=auto
    wait_for 40 grep -q '"kind":"interval"' "$dir/events.jsonl"
    due=$(sed -n 's/.*"kind":"interval","step":\([0-9]*\),.*/\1/p' "$dir/events.jsonl" | head -n 1)
    wait_for 40 at_step $((due + 5))
    "$cluster" kill "$(node_of 1)" >/dev/null
    assert_same
    begin=$(sed -n 's/.*"kind":"restored","step":\([0-9]*\),.*from the nodes. memory.*/\1/p' "$dir/events.jsonl")
    # The first was made behind the tenth step.
    [ "$begin" -ge 10 ] || { cat "$dir/events.jsonl"; return 1; }
    # Whatever was complete behind it was computed again, and nothing before it.
    expect "first step of generation 2" "$(sed -n 's/.*"step":\([0-9]*\),.*"generation":2,.*/\1/p' \
        "$dir/metrics.jsonl" | head -n 1)" $((begin + 1))
}

# The memory is the agent's, and goes with it; the node is well, and yet what it had is lost.
@test "an agent alone is killed: its node's partner has the state" {
    start_training 5 1
    wait_for 20 at_step 10
    local node
    node=$(node_of 2)
    kill -KILL "$(agent_of 2)"
    assert_same_again 1
    expect_match "$(cat "$dir/out")" "node $node is lost \(rank 2\): .* takes over rank 2: generation 2"
    expect_match "$(cat "$dir/events.jsonl")" '"restored",.*from the nodes. memory'
}

@test "the node of rank 0, and then the spare that took over" {
    start_training 6 2
    wait_for 20 at_step 10
    "$cluster" kill "$(node_of 0)" >/dev/null
    wait_for 30 grep -q "generation 2 goes on" "$dir/out"
    "$cluster" kill "$(node_of 0)" >/dev/null
    assert_same_again 2 3
}

@test "a node and its partner at once: back to a file" {
    write_plan_with "shared: checkpoints, every: 5"
    start_training 6 2
    wait_for 20 at_step 12
    # Of four nodes under two switches, 1 and 3 keep each other's state.
    "$cluster" kill "$(node_of 1)" "$(node_of 3)" >/dev/null
    assert_same_again 40
    expect_match "$(cat "$dir/events.jsonl")" '"restored","step":[0-9]*[05],.* samples"'
}
