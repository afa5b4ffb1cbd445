# training.bash - what tests share that train: what a run has computed, and who computes it. Loaded
# behind cluster.bash. $dir is the run folder of the test.

# "STEP LOSS" of every line, by step, each pair once: two losses of one step are two lines.
losses() { # RUN-DIR
    sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl" | sort -u | sort -n
}

newest_step() {
    sed -n 's/.*"step":\([0-9]*\),.*/\1/p' "$dir/metrics.jsonl" 2>/dev/null | sort -n | tail -n 1
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
