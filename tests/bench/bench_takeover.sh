#!/bin/bash
# bench_takeover.sh [ROUNDS] - how long a lost node stops a run, beside torchrun's elastic restart.
#
# On the cluster of contrib/cluster.sh: four nodes train, one of them is killed, and the clock runs
# from the kill to the first step that is new: one of a later generation, or of a process that began
# after the kill, with a number above all of the earlier ones. In turn: `gtrain train` with a spare; and, where GTRAIN_TORCH_PYTHON names a
# Python with PyTorch, contrib/pytorch/ddp.py under gtrain with a spare, then under torchrun, which
# goes on with the three nodes that are left (its timeouts cut short). What of it is one step's own
# time is printed beside it. Medians, lowest and highest.
set -eu
rounds=${1:-5}
root=$(cd "$(dirname "$0")/../.." && pwd)
cluster=$root/contrib/cluster.sh
python=${GTRAIN_TORCH_PYTHON:-}
limit=240 # seconds for a run to begin, and to go on after the kill
here=

stop() { # a run that is in the background
    [ -z "${run:-}" ] || kill -TERM "$run" 2>/dev/null || true
    [ -z "${run:-}" ] || wait "$run" 2>/dev/null || true
    run=
    "$cluster" up >/dev/null # a job on a dead node is never over for Slurm
}

finish() {
    stop
    [ -z "$here" ] || rm -rf "$here"
}

write_plan() {
    mkdir "$here/data"
    yes "the quick brown fox jumps over the lazy dog" | head -c 1000000 >"$here/data/train.txt"
    cat >"$here/plan.yaml" <<END
model: {layers: 4, hidden: 128, ffn: 384, heads: 4, kv_heads: 2, vocab: 256}
data: {format: text, train: $here/data/train.txt}
training: {steps: 100000, global_batch: 32, microbatch: 4, sequence: 64, lr: 0.001}
parallel: {tensor: 1, pipeline: 2, data: 2}
checkpoint: {local: /local/gtrain-bench, every: 50}
resilience: {spares: 1}
END
}

# "STEP GENERATION" of each step as it is complete, "start 0" where a worker begins (torchrun counts
# no generations), for good or until the run ends.
steps_of() { # FILE PID
    tail -s 0.01 --pid="$2" -n +1 -F "$1" 2>/dev/null |
        sed -u -n -e 's/.*"step":\([0-9]*\),"loss".*"generation":\([0-9]*\),.*/\1 \2/p' \
            -e 's/^.*generation \([0-9]*\) step \([0-9]*\)\/.*/\2 \1/p' -e 's/^.*worker starts$/start 0/p'
}

# Read steps from descriptor 3 until one is above $1. Fails when $limit seconds pass.
until_step() { # STEP
    local until=$((SECONDS + limit)) seen
    while [ $SECONDS -lt $until ]; do
        read -r -t 1 -u 3 seen && [ "${seen% *}" != start ] || continue
        step=${seen% *} generation=${seen#* }
        [ "$step" -le "$1" ] || return 0
    done
    return 1
}

# Read on until a step is new. Lines of the processes that the kill ended may come late.
until_new() {
    local until=$((SECONDS + limit)) seen later=no
    while [ $SECONDS -lt $until ]; do
        read -r -t 1 -u 3 seen || continue
        if [ "${seen% *}" = start ]; then
            later=yes
        elif [ $later = yes ] || [ "${seen#* }" -gt "$generation" ]; then
            later=yes
            [ "${seen% *}" -le "$step" ] || return 0
        elif [ "${seen% *}" -gt "$step" ]; then
            step=${seen% *}
        fi
    done
    return 1
}

# Lose a node; $from is when.
lose() { # NODE
    local pid
    read -r pid _ <"${SLURM_CONF%/etc/slurm.conf}/run/$1"
    from=${EPOCHREALTIME/./}
    [ "$GTRAIN_CLUSTER_MODE" != namespaces ] || kill -KILL "$pid"
    "$cluster" kill "$1" >/dev/null
}

# Into $line: milliseconds from killing the node to the first new step, and a step's own; or what went
# wrong.
measure() { # FILE NODE-COMMAND
    local file=$1 from began at_start node
    exec 3< <(steps_of "$file" "$run")
    step=0 generation=0
    line="did not begin within $limit s"
    until_step 5 || return 0
    began=${EPOCHREALTIME/./} at_start=$step
    line="stopped by itself"
    until_step $((step + 8)) || return 0
    local own=$(((${EPOCHREALTIME/./} - began) / (step - at_start)))
    node=$($2)
    # Those that began so far were read before the steps were.
    lose "$node"
    line="no new step within $limit s"
    if until_new; then
        line="$(((${EPOCHREALTIME/./} - from) / 1000)) $((own / 1000))"
    fi
    exec 3<&-
}

train() {
    local dir=$here/run
    rm -rf "$dir"
    srun -N5 --ntasks-per-node=1 --gtrain-plan="$here/plan.yaml" --gtrain-spares=1 \
        --gtrain-dir="$dir" "$gtrain" train >"$here/out" 2>&1 &
    run=$!
    node_of_three() { awk '$1 == "3-3" { print $2 }' "$dir/placement.txt"; }
    measure "$dir/metrics.jsonl" node_of_three
}

ddp() {
    rm -rf "$here/ddp"
    mkdir "$here/ddp"
    srun -N5 --ntasks-per-node=1 --gtrain-plan="$root/contrib/pytorch/ddp.yaml" --gtrain-spares=1 \
        --gtrain-dir="$here/ddp/run" "$python" "$root/contrib/pytorch/ddp.py" "$here/ddp" 1000000 \
        >"$here/ddp/out" 2>&1 &
    run=$!
    node_of_three() { awk '$1 == "3-3" { print $2 }' "$here/ddp/run/placement.txt"; }
    measure "$here/ddp/out" node_of_three
}

# One agent a node, each in a step of its own, so that a lost node takes no other with it.
torchrun() {
    local head
    rm -rf "$here/torch"
    mkdir "$here/torch"
    printf '#!/bin/sh\necho "worker starts"\nexec "%s" "%s" "%s" 1000000\n' "$python" \
        "$root/contrib/pytorch/ddp.py" "$here/torch" >"$here/worker.sh"
    chmod 755 "$here/worker.sh"
    cat >"$here/agents.sh" <<END
#!/bin/bash
for n in n0 n1 n2 n3; do
    srun --overlap -N1 -n1 -w \$n "$python" -m torch.distributed.run --nnodes=3:4 --nproc-per-node=1 \\
        --max-restarts=5 --rdzv-backend=c10d --rdzv-id=bench --rdzv-endpoint=\$1:29400 \\
        --rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2 \\
        --no-python "$here/worker.sh" &
done
wait
END
    chmod 755 "$here/agents.sh"
    head=$(scontrol show node n0 | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
    salloc -Q --no-kill -N4 -w n0,n1,n2,n3 "$here/agents.sh" "$head" >"$here/torch/out" 2>&1 &
    run=$!
    node_of_three() { echo n3; }
    measure "$here/torch/out" node_of_three
}

# Of lines "MS STEP-MS".
print() { # WHAT FILE
    grep -v '^[0-9]* [0-9]*$' "$2" | sort | uniq -c | sed "s/^ */$1: in so many rounds /"
    grep '^[0-9]* [0-9]*$' "$2" | sort -n | awk -v what="$1" '
        { took[NR] = $1 / 1000; own += $2 / 1000 }
        END {
            if (!NR)
                exit
            printf "%s: %.2f s (%.2f to %.2f, %d rounds), of which a step is %.2f s\n", what,
                took[int((NR + 1) / 2)], took[1], took[NR], NR, own / NR
        }'
}

"$cluster" up 6 >/dev/null
eval "$("$cluster" env)"
export SLURM_CONF
gtrain=$(tr ' ' '\n' <"${SLURM_CONF%/slurm.conf}/plugstack.conf" | sed -n 's/^gtrain=//p')
here=$(mktemp -d "$GTRAIN_CLUSTER_SHARED/bench.XXXXXX")
chmod 755 "$here"
trap finish EXIT
write_plan
what=(train)
[ -z "$python" ] || what+=(ddp torchrun)
[ -n "$python" ] || echo "GTRAIN_TORCH_PYTHON names no Python: torchrun is left out" >&2
for i in $(seq "$rounds"); do
    for w in "${what[@]}"; do
        $w
        echo "$line" >>"$here/$w.times"
        echo "round $i of $rounds, $w: $line" >&2
        stop
    done
done
for w in "${what[@]}"; do print "$w" "$here/$w.times"; done
