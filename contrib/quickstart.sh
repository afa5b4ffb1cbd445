#!/bin/bash
# quickstart.sh - from a fresh machine to a trained model, with a node and a whole run lost on the way.
#
#   contrib/quickstart.sh           about 5 minutes on 2 cores
#   contrib/quickstart.sh --short   the same way with a minute of training (what the tests run)
#   contrib/quickstart.sh --keep    leave the one-machine Slurm cluster up afterwards
#
# Installs packages, builds, brings a Slurm cluster of six nodes up on this machine, trains a small
# Llama on English text on four of them (tensor x pipeline x data parallel, 8 ranks), kills one of the
# four (a spare takes over), kills the whole run, submits the same command again with
# --gtrain-restore=latest, compares the losses that were computed twice bit by bit, samples from the
# model, and takes the cluster down.
set -u
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

keep=no
plan_change=
kill_node_after=120
kill_run_after=240
target=2.0
for arg in "$@"; do
    case $arg in
    --keep) keep=yes ;;
    --short)
        # Enough to cross a checkpoint, a loss and a restore; too short for the loss to get far.
        plan_change=,training.steps=120,training.warmup_steps=10,training.val_batches=1,checkpoint.every=20
        kill_node_after=25
        kill_run_after=45
        target=3.2
        ;;
    -h | --help)
        sed -n '2,12s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *) die "unknown option '$arg': there are --short and --keep" ;;
    esac
done

work=$root/build-quickstart
stage=${GTRAIN_STAGE:-$work/stage}
run=$work/run
cluster=$root/contrib/cluster.sh
started=$SECONDS
mkdir -p "$work"

# metric KEY: the newest value of a key in the run's metrics, empty if there is none.
metric() {
    sed -n 's/.*"'"$1"'": *\([-0-9.e+]*\).*/\1/p' "$run/metrics.jsonl" 2>/dev/null | tail -n 1
}

# Becomes srun: to be called in a subshell.
submit() {
    exec "$cluster" run srun --gtrain-plan="$root/contrib/plans/quickstart.yaml,data.train=$work/train.txt$plan_change" \
        --gtrain-dir="$run" --gtrain-spares=1 -N5 --ntasks-per-node=2 "$@" "$stage/bin/gtrain" train
}

say "1/6 packages"
install_packages run

if [ -z "${GTRAIN_STAGE-}" ]; then
    say "2/6 building (the compiler's output goes to $work/gcc/build.log)"
    build "$work/gcc" --prefix="$stage" --with-slurm-plugindir="$stage/lib/slurm"
    make -C "$work/gcc" install >"$work/install.log" 2>&1 || die "make install failed: $work/install.log"
else
    say "2/6 using what is installed in $stage"
fi
[ -s "$work/train.txt" ] || "$root/contrib/text.sh" "$work/train.txt" || die "there is no text to train on"

say "3/6 a Slurm cluster of six nodes on this machine"
GTRAIN_PREFIX=$stage "$cluster" up || die "the cluster did not come up: see above"
[ $keep = yes ] || trap '"$cluster" down >/dev/null 2>&1' EXIT
"$cluster" run sinfo

say "4/6 training on four nodes, two ranks each, and one spare"
rm -rf "$run"
submit --gtrain-restore=none &
srun_pid=$!

# Wait until the run has done so many steps; it must not end before.
reach() {
    local step
    while step=$(metric step) && [ "${step:-0}" -lt "$1" ]; do
        kill -0 $srun_pid 2>/dev/null || die "the run ended before step $1: see above"
        sleep 0.1
    done
    echo "-- step $step: $2"
}

reach $kill_node_after "node n1 is killed, as if the machine had lost power"
"$cluster" kill n1
reach $((kill_node_after + 1)) "the spare has taken over; node n1 is started again, for later jobs"
"$cluster" revive n1 & # the run does not wait for it
revive_pid=$!
reach $kill_run_after "the whole run is killed: srun gets SIGKILL, and Slurm ends what it left"
kill -KILL $srun_pid
{ wait $srun_pid; } 2>/dev/null && die "the run ended well although it was killed: that is a bug"
wait $revive_pid || die "node n1 did not come back"

say "5/6 the same command again, with --gtrain-restore=latest"
(submit --gtrain-restore=latest) || die "the restored run failed: see above"

# Steps that were computed more than once, and those of them whose losses are equal: equal text is
# equal bits (17 digits).
read -r twice equal < <(sed -n 's/.*"step": *\([0-9]*\),.*"loss": *\([-0-9.e+]*\).*/\1 \2/p' "$run/metrics.jsonl" |
    awk '{ n[$1]++; if ($1 in first && first[$1] != $2) differs[$1] = 1; else first[$1] = $2 }
        END { for (s in n) if (n[s] > 1) { twice++; if (!(s in differs)) equal++ } print twice + 0, equal + 0 }')
echo "steps computed twice, before a loss and after a restore: $twice; equal to the last bit: $equal"
[ "$twice" -gt 0 ] && [ "$twice" -eq "$equal" ] || die "the restored run is not the run that was lost"

say "6/6 what was learnt"
val=$(metric val_loss)
echo "validation loss: $val nats per byte (uniform guessing: 5.545)"
awk -v v="$val" -v t=$target 'BEGIN { exit !(v != "" && v + 0 < t) }' ||
    die "the validation loss should be below $target"
"$cluster" run "$stage/bin/gtrain" generate --checkpoint "$run" --prompt "The " --tokens 300 --temperature 0.7 ||
    die "sampling failed"
"$stage/bin/gtrain" report "$run" || die "the report failed"

say "done in $((SECONDS - started)) s"
cat <<TEXT
Look at   $run/report.html
Try       $root/contrib/quickstart.sh --keep, then
          $cluster run srun -N4 --ntasks-per-node=2 --gtrain-plan=contrib/plans/quickstart.yaml,data.train=$work/train.txt,training.lr=1e-3 gtrain train
Test      $root/contrib/check.sh
TEXT
