# What cannot work is refused before anything is allocated, with one line that says what would.

load cluster.bash

setup_file() {
    cluster_begin
}

teardown_file() {
    cluster_finish
}

setup() {
    before=$(last_job)
}

teardown() {
    assert_nothing_left
}

# Run a command, expect failure, this line, and no new job.
refused() { # REGEX CMD...
    local regex=$1
    shift
    run bounded "$@"
    [ "$status" -ne 0 ] || {
        echo "was not refused: $*"
        return 1
    }
    expect_match "$output" "$regex"
    expect "newest job" "$(last_job)" "$before"
}

@test "a broken plan is refused before allocation, with file and line" {
    printf 'model:\n  layers: many\n' >"$here/broken.yaml"
    for tool in "srun -N2" "sbatch -N2" "salloc -N2"; do
        refused 'broken\.yaml:2' $tool --gtrain-plan="$here/broken.yaml" "$here/true.sh"
    done
}

@test "a plan file that is not there is refused" {
    refused "nothing\.yaml" srun -N2 --gtrain-plan="$here/nothing.yaml" true
}

@test "a value behind the file is checked too" {
    refused "tensor" srun -N2 --ntasks-per-node=2 --gtrain-plan="$here/plan.yaml,parallel.tensor=3" true
}

@test "what gtrain train cannot do is refused when it is the program, and then only" {
    refused "plan\.yaml,parallel\.shard=optimizer: parallel\.shard" srun -N2 --ntasks-per-node=2 \
        --gtrain-plan="$here/plan.yaml,parallel.pipeline=1,parallel.data=2,parallel.shard=optimizer" "$gtrain" train
    run bounded srun -N2 --ntasks-per-node=2 --gtrain-dir="$here/run" \
        --gtrain-plan="$here/plan.yaml,parallel.pipeline=1,parallel.data=2,parallel.shard=optimizer" true
    expect status "$status" 0
}

@test "uneven tasks are refused with the command that is right" {
    refused "-N4 --ntasks-per-node=2" srun -N4 -n7 --gtrain-plan="$here/plan.yaml" true
    refused "-N5 --ntasks-per-node=1" srun -N5 -n3 --gtrain-plan="$here/plan.yaml" true
}

@test "a number of tasks that divides is spread evenly over the nodes" {
    run bounded srun -N2 -n4 --gtrain-dir="$here/even" --gtrain-plan="$here/plan.yaml" \
        sh -c 'echo $GROUP_RANK'
    expect status "$status" 0
    expect nodes "$(sort <<<"$output")" "$(printf '0\n0\n1\n1')"
    run bounded srun -N2 -n4 sh -c 'echo $SLURM_NTASKS_PER_NODE'
    expect "plain srun" "$output" ""
}

@test "a world that does not fit the nodes is refused" {
    refused "4" srun -N1 --ntasks-per-node=3 --gtrain-plan="$here/plan.yaml" true
}

@test "--multi-prog, --pty and heterogeneous jobs are refused" {
    echo "* true" >"$here/multi"
    refused "multi-prog" srun -n2 --multi-prog --gtrain-plan="$here/plan.yaml" "$here/multi"
    refused "--pty" srun -n1 --pty --gtrain-plan="$here/plan.yaml" true
    refused "heterogeneous" srun --gtrain-plan="$here/plan.yaml" -n1 true : -n1 true
}

@test "an option twice: the same value is fine, another is not" {
    refused "twice" srun -N2 --gtrain-spares=1 --gtrain-spares=2 --gtrain-plan="$here/plan.yaml" true
    run bounded srun -N2 --ntasks-per-node=2 --gtrain-plan="$here/plan.yaml" --gtrain-dir="$here/run" \
        --gtrain-plan="$here/plan.yaml" true
    expect status "$status" 0
}

@test "values that cannot be right are refused" {
    refused "gtrain-spares=some: say a number" srun --gtrain-spares=some --gtrain-plan="$here/plan.yaml" true
    refused "gtrain-spares=-1: say a number" srun --gtrain-spares=-1 --gtrain-plan="$here/plan.yaml" true
    refused "add --gtrain-plan" srun --gtrain-spares=1 true
    refused "nothing|no plan to inherit" srun --gtrain-plan=inherit true
    refused "needs a value" srun --gtrain-plan= true
}

@test "the environment's values are checked as the options are" {
    GTRAIN_SPARES=many refused "GTRAIN_SPARES=many: say a number" \
        srun -N2 --gtrain-plan="$here/plan.yaml" true
}
