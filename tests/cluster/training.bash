# training.bash - what tests share that train: what a run has computed, and who computes it. Loaded
# behind cluster.bash. $dir is the run folder of the test, or $dir/r where its script needs $dir.

# The model that most of them train, for $steps steps: $here/train.yaml.
write_train_plan() { # DEGREES CHECKPOINT [RESILIENCE]
    cat >"$here/train.yaml" <<END
model: {layers: 4, hidden: 96, ffn: 256, heads: 4, kv_heads: 2, vocab: 256}
data: {format: text, train: $here/data/train.txt}
training: {steps: $steps, decay_steps: $steps, warmup_steps: 4, global_batch: 8, microbatch: 2, sequence: 32,
           lr: 0.003}
parallel: {$1}
checkpoint: {$2}
resilience: {heartbeat_ms: 200, patience_ms: 2000${3:+, $3}}
END
}

# What it computes when nothing happens: $here/undisturbed.
train_undisturbed() { # [PLAN-VALUES]
    "$gtrain" train --local --threads 1 --dir "$here/undisturbed" --plan "$here/train.yaml${1-}" \
        >"$here/undisturbed.out" 2>&1 3>&-
}

# A test's run folder, and its end: what it has killed is up again, and nothing is left of its job.
begin_test() {
    dir=$(mktemp -d "$here/run.XXXXXX")
    job=
}

end_test() {
    [ -z "${job:-}" ] || scancel "$job" 2>/dev/null || true
    "$cluster" up >/dev/null
    assert_nothing_left
}

# Train in the background.
start_training() { # NODES SPARES [PLAN-VALUES]
    bounded srun -N"$1" --ntasks-per-node=1 --gtrain-plan="$here/train.yaml${3-}" --gtrain-spares="$2" \
        --gtrain-dir="$dir" "$gtrain" train >"$dir/out" 2>&1 3>&- &
    bounded=$!
}

# That ended well, and computed what it would have without us.
assert_same() {
    local status=0
    wait $bounded || status=$?
    [ $status = 0 ] || { cat "$dir/out" "$dir/coordinator.log"; echo "srun ended with $status"; return 1; }
    expect "losses of $steps steps, each computed once or more" "$(losses "$dir")" \
        "$(losses "$here/undisturbed")"
}

# "STEP LOSS" of every line, by step, each pair once: two losses of one step are two lines.
losses() { # RUN-DIR
    sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl" | sort -u | sort -n
}

newest_step() {
    sed -n 's/.*"step":\([0-9]*\),.*/\1/p' "$dir/metrics.jsonl" "$dir/r/metrics.jsonl" 2>/dev/null |
        sort -n | tail -n 1
}

at_step() { # STEP
    [ "$(newest_step || echo 0)" -ge "$1" ] 2>/dev/null
}

# The id of the run in $dir, by which its checkpoint folder is called.
run_id() {
    sed -n 's/.*"run_id": *"\([0-9a-f]*\)".*/\1/p' "$dir/run.json"
}

# The node that has this rank now, by the coordinator's file.
node_of() { # RANK
    awk -v r="$1" '$1 == r "-" r { print $2 }' "$dir/placement.txt"
}

# The worker of a rank, as the host sees it.
worker_of() { # RANK
    local p
    for p in $(grep -lzxF "RANK=$1" /proc/[0-9]*/environ 2>/dev/null); do
        p=${p%/environ}
        if grep -qzxF "GTRAIN_RUN_DIR=$dir" "$p/environ" && grep -qzx train "$p/cmdline"; then
            basename "$p"
        fi
    done
}

agent_of() { # RANK: the parent of its worker
    awk '/^PPid:/ { print $2 }' "/proc/$(worker_of "$1")/status"
}

# The most steps that were complete, as rank 0 saw it, and were computed again by a later generation.
most_again() {
    sed -n 's/.*"step":\([0-9]*\),.*"generation":\([0-9]*\),"epoch":\([0-9]*\),.*/\1 \3.\2/p' \
        "$dir/metrics.jsonl" | awk '
            NR > 1 && $2 != launch && last - $1 + 1 > most { most = last - $1 + 1 }
            { launch = $2; last = $1 }
            END { print most + 0 }'
}
