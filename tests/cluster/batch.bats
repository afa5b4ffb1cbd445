# Inside sbatch and salloc: who inherits the options and who does not; time limits; lost nodes.

load cluster.bash

setup_file() {
    cluster_begin
}

teardown_file() {
    cluster_finish
}

setup() {
    dir=$(mktemp -d "$here/run.XXXXXX")
    cd "$dir"
}

teardown() {
    scancel -u root 2>/dev/null
    "$cluster" up >/dev/null
    assert_nothing_left
}

# Submit a script given on standard input and wait for its end; its output is in $dir/out.
submit() { # SBATCH-ARGS...
    cat >"$dir/job.sh"
    timeout 100 sbatch --wait -o "$dir/out" "$@" "$dir/job.sh" 2>&1
}

@test "#SBATCH lines: inherit takes the plan, relative to where the job was submitted" {
    cp "$here/plan.yaml" "$dir/my.yaml"
    submit <<'END'
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=2
#SBATCH --gtrain-plan=my.yaml --gtrain-dir=rundir
cd /
srun --gtrain-plan=inherit sh -c 'echo "$RANK $GTRAIN_RUN_DIR"' | sort
END
    expect output "$(cat "$dir/out")" "$(printf "%s $dir/rundir\n" 0 1 2 3)"
}

@test "a helper srun in a script that asked is plain" {
    submit --gtrain-plan="$here/plan.yaml" --gtrain-dir="$dir/r" <<'END'
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=2
srun sh -c 'echo "rank=$RANK $(tr "\0" " " </proc/$PPID/cmdline | cut -d" " -f1)"' | sort -u
END
    expect output "$(cat "$dir/out")" "rank= slurmstepd:"
    [ ! -e "$dir/r" ]
}

@test "srun gtrain train in a script that asked is asked for" {
    mkdir "$dir/bin"
    printf '#!/bin/sh\necho "$1 as rank $RANK"\n' >"$dir/bin/gtrain"
    chmod 755 "$dir/bin/gtrain"
    submit --gtrain-plan="$here/plan.yaml" --gtrain-dir="$dir/r" <<END
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=2
srun $dir/bin/gtrain train | sort
END
    expect output "$(cat "$dir/out")" "$(printf 'train as rank %s\n' 0 1 2 3)"
}

@test "the command line wins over #SBATCH lines, and srun's over sbatch's" {
    submit --gtrain-dir="$dir/second" <<END
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=2 --gtrain-plan=$here/plan.yaml --gtrain-dir=$dir/first
srun --gtrain-plan=inherit sh -c '[ \$RANK = 0 ] && echo \$GTRAIN_RUN_DIR; :'
srun --gtrain-plan=inherit --gtrain-dir=$dir/third sh -c '[ \$RANK = 0 ] && echo \$GTRAIN_RUN_DIR; :'
END
    # The second srun may say that the first one's nodes are still busy.
    expect output "$(grep -v '^srun: ' "$dir/out")" "$(printf "$dir/second\n$dir/third")"
}

@test "a broken plan in #SBATCH lines is refused at submission" {
    printf 'model:\n  layers: many\n' >"$dir/broken.yaml"
    printf '#!/bin/bash\n#SBATCH -N2 --gtrain-plan=%s\ntrue\n' "$dir/broken.yaml" >"$dir/job.sh"
    before=$(last_job)
    run sbatch "$dir/job.sh"
    [ "$status" -ne 0 ]
    expect_match "$output" 'broken\.yaml:2'
    expect "newest job" "$(last_job)" "$before"
}

@test "GTRAIN_PLAN is what inherit takes, and changes behind it count" {
    out=$(GTRAIN_PLAN=$here/plan.yaml GTRAIN_DIR=$dir/r bounded srun -N1 --ntasks-per-node=2 \
        --gtrain-plan=inherit,parallel.pipeline=1 sh -c 'echo "$RANK of $WORLD_SIZE"' | sort)
    expect output "$out" "$(printf '%s of 2\n' 0 1)"
    out=$(GTRAIN_PLAN=$here/plan.yaml bounded srun -N1 sh -c 'echo "rank=$RANK"')
    expect "output of a helper" "$out" "rank="
}

@test "salloc" {
    out=$(timeout 60 salloc -Q -N2 --ntasks-per-node=2 --gtrain-plan="$here/plan.yaml" \
        --gtrain-dir="$dir/r" srun --gtrain-plan=inherit sh -c 'echo "$RANK"' 2>/dev/null | sort)
    expect ranks "$out" "$(printf '0\n1\n2\n3')"
}

@test "a job that asked outlives a node that is set down, one that did not dies" {
    for ask in "--gtrain-plan=$here/plan.yaml" "--comment=plain"; do
        job=$(sbatch --parsable --no-requeue -N3 -w n[3-5] -o /dev/null $ask --wrap "sleep 300")
        wait_for 20 running "$job"
        scontrol update NodeName=n4 State=DOWN Reason=test
        sleep 1
        state=$(squeue -h -j "$job" -o %T 2>/dev/null)
        # The node may have come back by itself by now.
        scontrol update NodeName=n4 State=RESUME || true
        scancel "$job"
        wait_for 20 gone "$job"
        case $ask in
        --gtrain*) expect "state of the job that asked" "$state" RUNNING ;;
        *) fails [ "$state" = RUNNING ] ;;
        esac
    done
}

@test "a time limit ends the run and leaves nothing" {
    # Slurm counts in minutes: take the running job's time away instead of waiting for one. Not by
    # EndTime=now, which Slurm refuses if the second turns between scontrol and the controller.
    bounded srun -N2 --ntasks-per-node=2 --gtrain-plan="$here/plan.yaml" --gtrain-dir="$dir/r" \
        sh -c "touch $dir/started.\$RANK; sleep 300" >"$dir/out" 2>&1 3>&- &
    pid=$!
    wait_for 20 test -e "$dir/started.3"
    job=$(newest_job)
    scontrol update JobId="$job" TimeLimit=0
    wait_for 50 eval "! kill -0 $pid"
    fails wait $pid
    expect_match "$(cat "$dir/out")" "TIME LIMIT|time limit"
}
