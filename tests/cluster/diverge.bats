# A step that is not a number, on a real Slurm: the next generation goes one checkpoint back (or two, where
# the older one is of an earlier launch), finds the same from there, and the run ends as diverged, with its
# checkpoints as good as they were.

load cluster.bash

setup_file() {
    cluster_begin
    # A learning rate that rises until no float32 holds the weights any more: at some step after 9.
    cat >"$here/plan.yaml" <<END
model: {layers: 2, hidden: 16, ffn: 32, heads: 2, kv_heads: 2, vocab: 256}
data: {format: text, train: $here/data/train.txt}
training: {steps: 64, warmup_steps: 64, decay_steps: 64, global_batch: 4, microbatch: 1, sequence: 16,
           lr: 1000, clip: 0}
parallel: {tensor: 2}
checkpoint: {local: /local/gtrain-diverge, every: 1, keep: 4}
resilience: {heartbeat_ms: 200, patience_ms: 2000, restarts: 0}
END
}

teardown_file() {
    cluster_finish
}

teardown() {
    assert_nothing_left
}

train() { # STEPS
    bounded srun -N2 -w n0,n1 --gtrain-plan="$here/plan.yaml,training.steps=$1" \
        --gtrain-dir="$here/run" "$gtrain" train
}

@test "a run that diverges goes back, and ends with code 3 and no mark" {
    [ "$GTRAIN_CLUSTER_MODE" = namespaces ] || skip "in plain mode nodes share this host's disk"
    train 5
    train 9
    run train 64
    echo "$output"
    [ "$status" -eq 3 ]
    [[ $output == *"steps after the checkpoint of step 9 was restored: that is marked bad"* ]]
    [[ $output == *"generation 2 starts"* ]]
    [[ $output == *"the run itself has diverged"* ]]
    [[ $output != *"generation 4 starts"* ]]
    # Both nodes have heard both: marked, and not any more.
    id=$(sed -n 's/.*"run_id": *"\([^"]*\)".*/\1/p' "$here/run/run.json")
    for node in n0 n1; do
        log=$(bounded srun -N1 -w $node cat "/local/gtrain-diverge/$id/$id.$node.commits")
        [ "$(grep -c ' bad v=1 ' <<<"$log")" -ge 1 ]
        [ "$(grep -c ' bad v=1 ' <<<"$log")" -eq "$(grep -c ' good v=1 ' <<<"$log")" ]
    done
    bounded srun -N2 -w n0,n1 rm -r /local/gtrain-diverge
}
