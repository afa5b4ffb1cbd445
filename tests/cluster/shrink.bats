# Fewer replicas: nodes are lost and no spare is left. The run goes on with as many replicas as the
# nodes that live hold, which share the whole batch: its losses are those of a run that lost nothing,
# but for the order of sums.

load cluster.bash
load training.bash

steps=40

setup_file() {
    cluster_begin
    cat >"$here/train.yaml" <<END
model: {layers: 2, hidden: 64, ffn: 160, heads: 4, kv_heads: 2, vocab: 256}
data: {format: text, train: $here/data/train.txt}
training: {steps: $steps, decay_steps: $steps, warmup_steps: 4, global_batch: 8, microbatch: 1, sequence: 32,
           lr: 0.003, precision: float64}
parallel: {data: 4}
checkpoint: {local: /local/gtrain-shrink, every: 1, keep: 2, block_bytes: 65536}
resilience: {heartbeat_ms: 200, patience_ms: 2000, shrink: true, min_data: 2}
END
    train_undisturbed ,checkpoint.every=0
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

start_training() { # ON-TOP-OF-THE-PLAN SRUN-OPTIONS
    local more=$1
    shift
    bounded srun -J "$name" --ntasks-per-node=1 --gtrain-plan="$here/train.yaml,training.steps=$run_steps$more" \
        --gtrain-dir="$dir" "$@" "$gtrain" train >"$dir/out" 2>&1 3>&- &
    bounded=$!
}

ends_with() { # STATUS [EPOCH GENERATION: that goes on, and then is told to end]
    local status=0
    if [ $# = 3 ]; then
        wait_for 40 goes_on "$2" "$3" || show
        stop_training
    fi
    wait $bounded || status=$?
    [ $status = "$1" ] || { cat "$dir/out" "$dir/coordinator.log"; echo "srun ended with $status"; return 1; }
}

# Every step has been done, and each of its losses is the undisturbed one to 1e-10.
assert_losses() {
    local to
    to=$(newest_step)
    undisturbed_to "$to"
    cat "$here/undisturbed/metrics.jsonl" "$dir/metrics.jsonl" |
        sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' |
        awk -v steps="$to" '
            !($1 in first) { first[$1] = $2; next }
            { seen[$1] = 1; d = $2 / first[$1] - 1; if (d < 0) d = -d
              if (d > 1e-10) { print "step " $1 ": loss " $2 ", undisturbed " first[$1]; bad = 1 } }
            END { for (i = 1; i <= steps; i++) if (!(i in seen)) { print "step " i " is missing"; bad = 1 }
                  exit bad }'
}

# No more than so many steps were computed again: of each generation but the first the one at most that
# was on its way.
assert_repeated() { # AT-MOST
    local n
    n=$(sed -n 's/.*"step":\([0-9]*\),"loss.*/\1/p' "$dir/metrics.jsonl" | sort -n | uniq -d | wc -l)
    [ "$n" -le "$1" ] || { echo "$n steps were computed again"; cat "$dir/events.jsonl"; return 1; }
}

@test "no spare is left: it goes on with fewer replicas, down to what is allowed" {
    start_training "" -N4
    wait_for 40 at_step 6
    "$cluster" kill "$(node_of 1)" >/dev/null
    wait_for 20 grep -q "generation 2 goes on" "$dir/out"
    "$cluster" kill "$(node_of 0)" >/dev/null
    ends_with 0 1 3
    assert_losses
    expect_match "$(cat "$dir/out")" "no spare is left: it goes on with 3 of 4 replicas on 3 nodes: generation 2"
    expect_match "$(cat "$dir/out")" "no spare is left: it goes on with 2 of 4 replicas on 2 nodes: generation 3"
    expect_match "$(cat "$dir/out")" "step +[0-9]+/$endless .*2 of 4 replicas"
    expect_match "$(cat "$dir/events.jsonl")" '"kind":"shrink".*3 of 4'
    expect_match "$(tail -n 1 "$dir/metrics.jsonl")" '"replicas":2,"generation":3,'
    expect "restores from memory" "$(grep -c "from the nodes' memory" "$dir/events.jsonl")" 2
    assert_repeated 2
}

@test "a pipeline's other stage becomes a spare, and takes over" {
    local two=",parallel.pipeline=2,parallel.data=2,resilience.min_data=1,checkpoint.redundancy=partner"
    start_training "$two" -N4
    wait_for 40 at_step 3
    "$cluster" kill "$(node_of 1)" >/dev/null
    wait_for 20 grep -q "generation 2 goes on" "$dir/out"
    "$cluster" kill "$(node_of 0)" >/dev/null
    ends_with 0 1 3
    assert_losses
    expect_match "$(cat "$dir/out")" "it goes on with 1 of 2 replicas on 2 nodes: generation 2"
    expect_match "$(cat "$dir/out")" "node n[0-9] takes over rank 0: generation 3"
    expect "restores from memory" "$(grep -c "from the nodes' memory" "$dir/events.jsonl")" 2
    assert_repeated 2
}

@test "the next start has all replicas again" {
    start_training ",checkpoint.shared=checkpoints,checkpoint.shared_every=1" -N4
    wait_for 40 at_step 3
    "$cluster" kill "$(node_of 1)" >/dev/null
    wait_for 20 grep -q "generation 2 goes on" "$dir/out"
    expect_match "$("$gtrain" status "$dir")" "^shrunk: 3 of 4 replicas are left"
    kill -TERM "$(srun_of $bounded)"
    wait $bounded || true
    "$cluster" up >/dev/null
    start_training ",checkpoint.shared=checkpoints,checkpoint.shared_every=1" -N4
    ends_with 0 2 1
    assert_losses
    expect_match "$(cat "$dir/events.jsonl")" 'data 4; restored into .* data 3'
    expect_match "$(cat "$dir/events.jsonl")" 'data 3; restored into .* data 4'
    expect "the run folder's plan" "$(grep -c '^  data: 4' "$dir/plan.yaml")" 1
}

@test "fewer than resilience.min_data is the end" {
    start_training ",resilience.min_data=4" -N4
    wait_for 40 at_step 2
    "$cluster" kill "$(node_of 2)" >/dev/null
    ends_with 1
    expect_match "$(cat "$dir/out")" "no spare is left, nor nodes for 4 replicas \(resilience.min_data\)"
}
