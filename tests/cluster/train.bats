# Training itself through Slurm: over nodes, killed as a whole at some moment, restored bit for bit.

load cluster.bash

setup_file() {
    cluster_begin
    export disk=$GTRAIN_CLUSTER_LOCAL/${here##*/}
    cat >"$here/train.yaml" <<END
model: {layers: 3, hidden: 64, ffn: 128, heads: 4, kv_heads: 2, vocab: 256}
data: {format: text, train: $here/data/train.txt, val_fraction: 0.1}
training: {steps: 200, warmup_steps: 20, global_batch: 8, microbatch: 2, sequence: 32, lr: 0.003, threads: 1}
parallel: {tensor: 2, pipeline: 2, data: 1}
checkpoint: {local: $disk, every: 10}
resilience: {heartbeat_ms: 200, patience_ms: 4000}
END
    # The run that nothing disturbs, which the others must equal.
    train "$here/whole" >"$here/whole.out" 2>&1 || cat "$here/whole.out"
}

teardown_file() {
    srun -N"$GTRAIN_CLUSTER_NODES" --ntasks-per-node=1 rm -rf "$disk"
    cluster_finish
}

teardown() {
    "$cluster" up >/dev/null
    assert_nothing_left
}

# Train in a run folder of this name, with checkpoints of its own on the nodes' disks.
train() { # DIR SRUN-ARGS...
    local dir=$1
    shift
    timeout --foreground -k 5 120 srun -N2 --ntasks-per-node=2 --gtrain-dir="$dir" \
        --gtrain-plan="$here/train.yaml,checkpoint.local=$disk/${dir##*/}" "$@" "$gtrain" train
}

# "STEP LOSS" of every step a run computed, those computed twice too; equal text is equal bits.
losses() { # DIR
    sed -n 's/.*"step": *\([0-9]*\),.*"loss": *\([-0-9.e+]*\).*/\1 \2/p' "$1/metrics.jsonl"
}

last_step() { # DIR
    losses "$1" 2>/dev/null | tail -n 1 | cut -d' ' -f1
}

# Pids of the run's four workers, once they are there.
workers() { # DIR
    local p
    for p in $(grep -lzxF "GTRAIN_RUN_DIR=$1" /proc/[0-9]*/environ 2>/dev/null); do
        { grep -qzx train "${p%environ}cmdline" && p=${p%/environ} && echo "${p#/proc/}"; } 2>/dev/null || true
    done
}

four_workers() { # DIR
    pids=$(workers "$1")
    [ "$(wc -w <<<"$pids")" = 4 ]
}

# Kill everything of a run once it has reached a step, restore, and compare with the whole run.
killed_and_restored() { # NAME STEP
    local dir=$here/$1 pid pids i
    train "$dir" >"$dir.out" 2>&1 3>&- &
    pid=$!
    wait_for 60 four_workers "$dir"
    for i in $(seq 3000); do
        step=$(last_step "$dir")
        [ "${step:-0}" -lt "$2" ] || break
        sleep 0.01
    done
    kill -KILL $pids
    ! wait $pid
    [ "$(last_step "$dir")" -lt 199 ]
    train "$dir" --gtrain-restore=latest >"$dir.again" 2>&1 || {
        cat "$dir.out" "$dir.again"
        return 1
    }
    expect "losses" "$(losses "$dir" | sort -n -u)" "$(losses "$here/whole" | sort -n -u)"
}

@test "a run over two nodes goes through all its steps and learns" {
    expect "steps" "$(losses "$here/whole" | wc -l)" 200
    first=$(losses "$here/whole" | head -n 1 | cut -d' ' -f2)
    last=$(losses "$here/whole" | tail -n 1 | cut -d' ' -f2)
    # Before the first step the loss is that of guessing among 256 bytes, ln 256 = 5.545.
    awk -v a="$first" -v b="$last" 'BEGIN { exit !(a > 5.2 && a < 5.9 && b < a - 0.5) }' || {
        echo "the loss goes from $first to $last"
        return 1
    }
}

@test "killed early, restored: the losses are those of the undisturbed run" {
    killed_and_restored early 15
}

@test "killed in the middle" {
    killed_and_restored middle 60
}

@test "killed late" {
    killed_and_restored late 120
}
