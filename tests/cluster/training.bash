# training.bash - what tests share that train: what a run has computed, and who computes it. Loaded
# behind cluster.bash. $dir is the run folder of the test, or $dir/r where its script needs $dir.

# Something is to happen to most of these runs, at some step. A run with an end of its own could be over
# before, on a machine that is slow or stalls; so they train for $run_steps steps, which is for ever
# (begin_test), and assert_same ends them when they have got over it. $steps is how long the learning rate
# falls, and how far the undisturbed run is computed at first.
endless=1000000

# The model that most of them train: $here/train.yaml.
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

# What $here/train.yaml, as it is now, computes when nothing happens: $here/undisturbed.
train_undisturbed() { # [PLAN-VALUES]
    cp "$here/train.yaml" "$here/undisturbed.yaml"
    echo "${1-}" >"$here/undisturbed.values"
    undisturbed_to "$steps"
}

# It is computed to this step, or further.
undisturbed_to() { # STEP
    local to=$1
    [ "$(losses "$here/undisturbed" 2>/dev/null | wc -l)" -lt "$to" ] || return 0
    [ "$to" = "$steps" ] || to=$(($1 + steps))
    rm -rf "$here/undisturbed"
    "$gtrain" train --local --threads 1 --dir "$here/undisturbed" \
        --plan "$here/undisturbed.yaml$(cat "$here/undisturbed.values"),training.steps=$to" \
        >"$here/undisturbed.out" 2>&1 3>&- || { cat "$here/undisturbed.out"; return 1; }
}

# A test's run folder, and its end: what it has killed is up again, and nothing is left of its job.
begin_test() {
    dir=$(mktemp -d "$here/run.XXXXXX")
    name=$(basename "$dir") # of the job that trains
    run_steps=$endless
    job=
}

end_test() {
    [ -z "${job:-}" ] || scancel "$job" 2>/dev/null || true
    scancel -n "$name" 2>/dev/null || true
    "$cluster" up >/dev/null
    assert_nothing_left
}

# Train in the background.
start_training() { # NODES SPARES [PLAN-VALUES [SRUN-ARGS...]]
    bounded srun -J "$name" -N"$1" --ntasks-per-node=1 --gtrain-spares="$2" --gtrain-dir="$dir" \
        --gtrain-plan="$here/train.yaml,training.steps=$run_steps${3-}" "${@:4}" \
        "$gtrain" train >>"$dir/out" 2>&1 3>&- &
    bounded=$!
}

ended() {
    ! kill -0 $bounded 2>/dev/null
}

show() {
    tail -n 60 "$dir"/{out,starts,codes,coordinator.log,r/coordinator.log} 2>/dev/null
    [ -z "${job:-}" ] || scontrol show job "$job" 2>&1
    return 1
}

# Three steps are complete that a launch or generation of that number, or a later one, has computed.
goes_on() { # EPOCH GENERATION
    cat "$dir/metrics.jsonl" "$dir/r/metrics.jsonl" 2>/dev/null |
        sed -n 's/.*"generation":\([0-9]*\),"epoch":\([0-9]*\),.*/\2 \1/p' |
        awk -v e="$1" -v g="$2" '$1 > e || ($1 == e && $2 >= g) { n++ } END { exit n < 3 }'
}

# Tell a run that has no end of its own to end: with the step that it is at.
stop_training() {
    local id=${job:-}
    [ "$run_steps" = "$endless" ] || return 0
    [ -n "$id" ] || id=$(squeue -h -n "$name" -o %A | sort -n | tail -n 1)
    [ -n "$id" ] && scancel --signal=TERM "$id"
}

# Every loss up to the newest step is the undisturbed run's, however often the step was computed.
same_losses() { # RUN-DIR
    local to
    to=$(losses "$1" | tail -n 1 | cut -d' ' -f1)
    [ "$run_steps" = "$endless" ] || to=$run_steps
    undisturbed_to "${to:-1}"
    expect "losses of ${to:-1} steps, each computed once or more" "$(losses "$1")" \
        "$(losses "$here/undisturbed" | head -n "${to:-1}")"
}

# It has got over what happened, ends well, and has computed what it would have without us.
assert_same() { # [GENERATION]
    local status=0
    [ "$run_steps" != "$endless" ] || wait_for 40 goes_on 1 "${1:-2}" || show
    stop_training || show
    wait $bounded || status=$?
    [ $status = 0 ] || { show || true; echo "srun ended with $status"; return 1; }
    same_losses "$dir" || show
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
