# Training on a real Slurm: the same bits as in one process, and the same bits after any crash.

load cluster.bash
load training.bash

steps=40
[ "${GTRAIN_TEST_LONG-no}" = no ] || steps=200

setup_file() {
    cluster_begin
    # Big enough that a checkpoint is many writes, small enough for a step of some ten milliseconds.
    cat >"$here/train.yaml" <<END
model: {layers: 4, hidden: 96, ffn: 256, heads: 4, kv_heads: 2, vocab: 256}
data: {format: text, train: $here/data/train.txt}
training: {steps: $steps, decay_steps: $steps, warmup_steps: 4, global_batch: 8, microbatch: 2, sequence: 32,
           lr: 0.003}
parallel: {tensor: 2, pipeline: 2, data: 1}
checkpoint: {local: /local/gtrain-test, every: 3, keep: 2, block_bytes: 65536}
resilience: {heartbeat_ms: 200, patience_ms: 2000}
END
    train_undisturbed ",checkpoint.local=$here/alone"
}

teardown_file() {
    disks umount || true
    cluster_finish
}

teardown() {
    assert_nothing_left
}

train() { # RUN-DIR STEPS SRUN-ARGS...
    local dir=$1 to=$2
    shift 2
    bounded srun -N2 -w n0,n1 --ntasks-per-node=2 --gtrain-plan="$here/train.yaml,training.steps=$to" \
        --gtrain-dir="$dir" "$@" \
        "$gtrain" train
}

newest_step() { # RUN-DIR
    sed -n 's/.*"step":\([0-9]*\),.*/\1/p' "$1/metrics.jsonl" 2>/dev/null | sort -n | tail -n 1
}

# A disk under /local/gtrain-test on both nodes whose writes land 60 ms late, the writer dead or not.
disks() { # mount | umount
    local node pid
    [ "$GTRAIN_CLUSTER_MODE" = namespaces ] && [ -c /dev/fuse ] && [ -x "$GTRAIN_SLOWFS" ] || return 1
    for node in n0 n1; do
        read -r pid _ <"${SLURM_CONF%/etc/slurm.conf}/run/$node"
        if [ "$1" = mount ]; then
            nsenter -t "$pid" -m -- mkdir -p /local/slow/back /local/gtrain-test
            nsenter -t "$pid" -m -- "$GTRAIN_SLOWFS" 60 /local/slow/back /local/gtrain-test \
                >/dev/null 2>&1 3>&- &
            wait_for 5 nsenter -t "$pid" -m -- mountpoint -q /local/gtrain-test
        else
            nsenter -t "$pid" -m -- umount /local/gtrain-test 2>/dev/null
            nsenter -t "$pid" -m -- rm -rf /local/slow /local/gtrain-test
        fi
    done
}

slow_logs() {
    ls "${SLURM_CONF%/etc/slurm.conf}"/nodes/n[01]/local/slow/slowfs.log
}

# Writes that landed after all that could have asked for them had been killed.
late_writes() {
    awk '$1 == "killed" { dead = 1 } $1 == "begun" { dead = 0 } dead && $1 == "write"' $(slow_logs) | wc -l
}

# SIGKILL to srun, the coordinator, the agents and the workers, all at once.
kill_everything() { # PID-OF-BOUNDED-SRUN
    local srun
    srun=$(srun_of "$1")
    # shellcheck disable=SC2046
    kill -KILL "$srun" $(run_pids) 2>/dev/null || true # some are gone by now
    [ $slow = no ] || slow_logs | while read -r log; do echo killed >>"$log"; done
    wait "$1" || true
}

# Coordinator, agents and workers of this test's runs, on the host and (as the host sees them) on the
# nodes.
run_pids() {
    local p
    for p in $(grep -lzxF "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ 2>/dev/null); do
        if { tr '\0' ' ' <"${p%environ}cmdline"; } 2>/dev/null |
            grep -Eq '^[^ ]*gtrain(-agent)? (coordinate|train)'; then
            basename "${p%/environ}"
        fi
    done
}

# Every file under a final name is whole: written to the end, each checksum right.
assert_files_whole() {
    local node pid out
    for node in n0 n1; do
        read -r pid _ <"${SLURM_CONF%/etc/slurm.conf}/run/$node"
        [ "$GTRAIN_CLUSTER_MODE" = namespaces ] || pid=self
        while IFS= read -r file; do
            out=$(nsenter -t "${pid/self/$$}" -m -- "$gtrain" ckpt show "$file" 2>&1) || {
                echo "$node: $file: $out"
                return 1
            }
        done < <(nsenter -t "${pid/self/$$}" -m -- find /local -path "*gtrain-test*" -name '*.safetensors')
    done
}

@test "four ranks over the network compute what four threads of one process compute" {
    run train "$here/run" $steps --gtrain-restore=none
    [ "$status" -eq 0 ] || { echo "$output"; false; }
    expect "losses of $steps steps" "$(losses "$here/run")" "$(losses "$here/undisturbed")"
    [ "$(losses "$here/run" | wc -l)" -eq $steps ]
}

@test "restored into ranks that cut each tensor otherwise, over the network, it goes on as before" {
    local plan="$here/train.yaml,training.precision=float64,training.decay_steps=12"
    local ask="srun -N2 -w n0,n1 --ntasks-per-node=2 --gtrain-dir=$here/cut"
    "$gtrain" train --local --threads 1 --dir "$here/uncut" \
        --plan "$plan,training.steps=12,checkpoint.every=0" >"$here/out" 2>&1 3>&-
    run bounded $ask --gtrain-plan="$plan,training.steps=6" "$gtrain" train
    [ "$status" -eq 0 ] || { echo "$output"; false; }
    run bounded $ask --gtrain-plan="$plan,training.steps=12,parallel.tensor=1,parallel.pipeline=4" \
        --gtrain-restore=latest "$gtrain" train
    [ "$status" -eq 0 ] || { echo "$output"; false; }
    expect_match "$output" "written with tensor 2, .* restored into tensor 1, "
    # Other sums, so not bit for bit.
    expect "steps whose losses agree to 1e-10" "$(join <(losses "$here/cut" | sort) \
        <(losses "$here/uncut" | sort) | awk '{ d = ($2 - $3) / $3; n += d < 1e-10 && d > -1e-10 }
                                              END { print n, NR }')" "12 12"
}

@test "a terminal gets a line that is redrawn in place, a log and labels get plain lines" {
    local ask="srun -N2 -w n0,n1 --ntasks-per-node=2 --gtrain-plan=$here/train.yaml,training.steps=8,checkpoint.every=0"
    out=$(TERM=xterm bounded script -qec "$ask --gtrain-dir=$here/live '$gtrain' train" /dev/null </dev/null)
    expect_match "$(cat -v <<<"$out")" '\^Mstep 8/8  loss .*\^\[\[K'
    out=$(TERM=xterm bounded script -qec "$ask -l --gtrain-dir=$here/labels '$gtrain' train" /dev/null </dev/null)
    expect "redrawn lines" "$(grep -c $'\e' <<<"$out")" 0
    expect_match "$out" '^0: step 8/8  loss '
    out=$(TERM=xterm bounded $ask --gtrain-dir="$here/pipe" "$gtrain" train)
    expect "redrawn lines" "$(grep -c $'\e' <<<"$out")" 0
    expect_match "$out" '^step 8/8  loss '
    # The program's own environment says nothing of how that was done.
    out=$(TERM=xterm bounded script -qec "$ask --gtrain-dir=$here/env env" /dev/null </dev/null)
    expect "traces of it" "$(grep UNBUFFEREDIO <<<"$out")" ""
}

restart() { # STEPS
    [ $slow = no ] || slow_logs | while read -r log; do echo begun >>"$log"; done
    train "$here/crash" "$1" --gtrain-restore=latest >"$here/out" 2>&1 3>&- &
    pid=$!
}

# Kill all of it some milliseconds into one of its next eight steps.
kill_at_random() {
    local wanted=$(($(newest_step "$here/crash" || true) + RANDOM % 8 + 1))
    while kill -0 $pid 2>/dev/null && [ $(($(newest_step "$here/crash" || true))) -lt $wanted ]; do
        sleep 0.01
    done
    kill -0 $pid || { echo "the run ended by itself:"; cat "$here/out"; return 1; }
    sleep 0.0$((RANDOM % 90 + 10))
    kill_everything $pid
}

@test "killed at random moments and resubmitted, a run keeps its losses to the last bit" {
    local kills=3 i late pid slow=no
    [ "${GTRAIN_TEST_LONG-no}" = yes ] && kills=20
    disks umount || true
    disks mount && slow=yes
    RANDOM=${GTRAIN_TEST_SEED:-20}
    restart $endless
    for i in $(seq $kills); do
        kill_at_random
        run_steps=$(($(newest_step "$here/crash") + 8))
        restart $([ "$i" = $kills ] && echo $run_steps || echo $endless)
    done
    wait $pid || { cat "$here/out"; false; }
    assert_files_whole
    if [ $slow = yes ]; then
        late=$(late_writes)
        echo "# $late writes landed after their writers had been killed" >&3
        # Three kills may all fall between two checkpoints; twenty do not.
        [ $kills -lt 20 ] || [ "$late" -gt 0 ]
    fi
    same_losses "$here/crash"
}
