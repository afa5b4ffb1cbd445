# contrib/cli_filter.lua: -N may be said for the ranks alone, or not at all. Jobs that do not ask for
# gtrain are as they were.

load cluster.bash

setup_file() {
    cluster_begin
    conf=$(cat "$SLURM_CONF")
    filter=${SLURM_CONF%/slurm.conf}/cli_filter.lua
    export conf filter
    sed "s,^local gtrain = .*,local gtrain = \"$gtrain\"," "$GTRAIN_SOURCE/contrib/cli_filter.lua" \
        >"$filter"
    # Read by each srun, sbatch and salloc; no daemon needs it.
    echo "CliFilterPlugins=cli_filter/lua" >>"$SLURM_CONF"
    set_plugstack "$plugin_line cli_filter"
    write_plan "$here/spare.yaml" 2 1 2
}

teardown_file() {
    [ -z "${conf:-}" ] || echo "$conf" >"$SLURM_CONF"
    rm -f "${filter:-}"
    cluster_finish
}

setup() {
    dir=$(mktemp -d "$here/run.XXXXXX")
    cd "$dir"
    ask="--gtrain-plan=$here/spare.yaml --gtrain-dir=$dir/r"
}

teardown() {
    assert_nothing_left
}

nodes_of() { # JOB
    scontrol show job -o "$1" | sed -n 's/.* NumNodes=\([0-9]*\)[ -].*/\1/p'
}

# The nodes a step of `sh -c` was placed on, spares included, by the coordinator.
placed() {
    sed -n 's/.* \([0-9]*\) nodes are there: .* with \([0-9]* ranks\).*,\( .*\)$/\1 nodes, \2,\3/p' "$dir/r/coordinator.log"
}

@test "srun: no -N, -N for the ranks and -N with the spares are the same" {
    local n
    for n in "" -N2 -N3; do
        rm -rf "$dir/r"
        bounded srun $n --ntasks-per-node=2 $ask --gtrain-spares=1 true
        expect "nodes with '$n'" "$(placed)" "3 nodes, 4 ranks, 1 spare"
    done
    rm -rf "$dir/r"
    bounded srun --gtrain-plan="$here/spare.yaml,resilience.spares=1" --gtrain-dir="$dir/r" true
    expect "nodes with nothing said" "$(placed)" "5 nodes, 4 ranks, 1 spare"
}

@test "another -N is refused as before" {
    run bounded srun -N1 --ntasks-per-node=2 $ask --gtrain-spares=1 true
    [ "$status" -ne 0 ]
    expect_match "$output" "need 3 nodes, but -N is 1: use -N3 --ntasks-per-node=2"
}

@test "sbatch and salloc: the allocation has the spares, the script says nothing of nodes" {
    cat >"$dir/job.sh" <<END
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=2 --gtrain-plan=$here/spare.yaml --gtrain-spares=1
srun --gtrain-plan=inherit --gtrain-dir=$dir/r true
srun hostname | wc -l
END
    job=$(sbatch --parsable -o "$dir/out" "$dir/job.sh")
    wait_for 20 gone "$job"
    expect "nodes of the batch job" "$(nodes_of "$job")" 3
    expect "placed" "$(placed)" "3 nodes, 4 ranks, 1 spare"
    expect "tasks of a plain srun" "$(tail -n 1 "$dir/out")" 6
    rm -rf "$dir/r"
    bounded salloc -Q --ntasks-per-node=2 $ask --gtrain-spares=1 \
        sh -c 'echo $SLURM_JOB_NUM_NODES; srun --gtrain-plan=inherit --gtrain-dir='"$dir/r"' true' \
        >"$dir/out" 2>&1
    expect "nodes of salloc" "$(head -n 1 "$dir/out")" 3
    expect "placed" "$(placed)" "3 nodes, 4 ranks, 1 spare"
}

@test "jobs that do not ask are untouched, and no plan makes the filter do what it says" {
    bounded srun -N2 sh -c 'echo $SLURM_NNODES' >"$dir/out"
    expect "nodes" "$(sort -u "$dir/out")" 2
    bounded srun sh -c 'echo $SLURM_NNODES' >"$dir/out"
    expect "nodes" "$(cat "$dir/out")" 1
    run bounded srun --gtrain-plan="x'; touch $dir/ran; echo '4 5" -N2 true
    [ "$status" -ne 0 ]
    [ ! -e "$dir/ran" ]
}
