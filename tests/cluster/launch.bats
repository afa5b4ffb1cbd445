# A program launched by gtrain: its ranks, and everything that should be as with plain srun.

bats_require_minimum_version 1.5.0
load cluster.bash

setup_file() {
    cluster_begin
}

teardown_file() {
    cluster_finish
}

setup() {
    dir=$(mktemp -d "$here/run.XXXXXX")
    ask="--gtrain-plan=$here/plan.yaml --gtrain-dir=$dir"
}

teardown() {
    assert_nothing_left
}

@test "ranks, world, node and master are right" {
    out=$(bounded srun -N2 --ntasks-per-node=2 $ask sh -c \
        'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $SLURMD_NODENAME"; [ -n "$MASTER_ADDR" ] && [ "$MASTER_PORT" -gt 0 ] && echo "master $MASTER_ADDR $MASTER_PORT"')
    expect "ranks" "$(grep -v master <<<"$out" | cut -d' ' -f1 | sort -n | tr '\n' ' ')" "0 1 2 3 "
    expect "the rest" "$(grep -v master <<<"$out" | cut -d' ' -f2,4 | sort | uniq -c | tr -s ' ')" " 4 4 2"
    # On each node two local ranks and one node rank.
    expect "local ranks" "$(grep -v master <<<"$out" | cut -d' ' -f3,5 | sort | tr '\n' ' ')" "0 0 0 1 1 0 1 1 "
    expect "nodes" "$(grep -v master <<<"$out" | cut -d' ' -f5,6 | sort -u | wc -l)" 2
    expect "one master for all" "$(grep master <<<"$out" | sort | uniq -c | tr -s ' ' | cut -d' ' -f2)" 4
}

@test "nothing of ours that an inner srun would take up is in the program's environment" {
    out=$(GTRAIN_SPARES=0 SLURM_WAIT=30 bounded srun -N2 --ntasks-per-node=2 $ask env)
    fails grep -E '^(SLURM_GTRAIN|SLURM_NO_KILL|SLURM_KILL_BAD_EXIT|SLURM_WAIT=|GTRAIN_PLAN|GTRAIN_SPARES|GTRAIN_RESTORE|GTRAIN_DIR)|SPANK_OPTION_gtrain' <<<"$out"
}

@test "spares wait: only the world's ranks run the program" {
    out=$(bounded srun -N3 --ntasks-per-node=2 $ask --gtrain-spares=1 sh -c 'echo "$RANK of $WORLD_SIZE"' | sort)
    expect output "$out" "$(printf '%s of 4\n' 0 1 2 3)"
}

@test "the exit code is the program's" {
    run bounded srun -N2 --ntasks-per-node=2 $ask sh -c '[ "$RANK" != 2 ] || exit 7; sleep 300'
    expect status "$status" 7
}

@test "a rank that fails ends the others, and a line says which" {
    # Who waits for the others ends by bounded, with another status.
    run bounded srun -N2 --ntasks-per-node=2 $ask sh -c '[ "$RANK" != 3 ] || exit 9; sleep 300'
    expect status "$status" 9
    expect_match "$output" "gtrain: .*rank 3"
}

@test "arguments, labels and standard input are as with plain srun" {
    plain=$(printf 'line one\nline two\n' | bounded srun -l -N2 --ntasks-per-node=2 sh -c 'cat; echo "$SLURM_PROCID:$1:$2"' x 'a b' '*' | sort)
    asked=$(printf 'line one\nline two\n' | bounded srun -l -N2 --ntasks-per-node=2 $ask sh -c 'cat; echo "$SLURM_PROCID:$1:$2"' x 'a b' '*' | sort)
    expect output "$asked" "$plain"
    [ -n "$plain" ]
}

@test "a task prolog's variables reach the program" {
    cat >"$here/prolog" <<'END'
#!/bin/sh
echo "export FROM_PROLOG=yes"
echo "print said by prolog"
END
    chmod 755 "$here/prolog"
    out=$(bounded srun -N2 --ntasks-per-node=2 --task-prolog="$here/prolog" $ask sh -c 'echo "got $FROM_PROLOG"')
    expect "lines" "$(sort <<<"$out" | uniq -c | tr -s ' ')" "$(printf ' 4 got yes\n 4 said by prolog')"
}

@test "the program is found as srun finds it: by PATH, by a path from here" {
    printf '#!/bin/sh\necho found\n' >"$here/tool"
    chmod 755 "$here/tool"
    cd "$here"
    expect "by PATH" "$(PATH=$here:$PATH bounded srun -N2 --ntasks-per-node=2 $ask tool | sort -u)" found
    expect "by ./" "$(bounded srun -N2 --ntasks-per-node=2 $ask ./tool | sort -u)" found
    run -2 bounded srun -N2 --ntasks-per-node=2 $ask no-such-tool
    expect_match "$output" "no-such-tool"
}

@test "--export=NONE works" {
    out=$(bounded srun --export=NONE -N2 --ntasks-per-node=2 $ask /bin/sh -c 'echo "$RANK"' | sort)
    expect ranks "$out" "$(printf '0\n1\n2\n3')"
}

@test "a user who is not root" {
    "$cluster" run --user nobody test -x "$gtrain" ||
        skip "the build is in a folder that only root may enter"
    chmod 777 "$dir"
    out=$("$cluster" run --user nobody timeout 60 srun -N2 --ntasks-per-node=2 $ask sh -c 'echo "$RANK $(id -un)"' | sort)
    expect output "$out" "$(printf '%s nobody\n' 0 1 2 3)"
}

@test "two jobs on one run folder: the second is refused, the first goes on" {
    bounded srun -N2 --ntasks-per-node=2 $ask sh -c "touch $dir/started.\$RANK; while [ ! -e $dir/go ]; do sleep 0.2; done" 3>&- &
    first=$!
    wait_for 20 test -e "$dir/started.3"
    run bounded srun -N2 --ntasks-per-node=2 $ask touch "$dir/second"
    [ "$status" -ne 0 ]
    expect_match "$output" "gtrain: .*$dir"
    touch "$dir/go"
    wait $first
    [ ! -e "$dir/second" ]
}

@test "one run after another on one folder is fine" {
    bounded srun -N2 --ntasks-per-node=2 $ask true
    bounded srun -N2 --ntasks-per-node=2 $ask true
}

@test "output redirected to files per task" {
    bounded srun -N2 --ntasks-per-node=2 -o "$dir/out.%t" $ask sh -c 'echo "$RANK"'
    expect files "$(cat "$dir"/out.? | sort | tr '\n' ' ')" "0 1 2 3 "
}
