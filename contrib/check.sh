#!/bin/bash
# check.sh - install what is missing, build, run every test, count.
#
#   contrib/check.sh          what CI runs
#   contrib/check.sh --long   the same with the long crash, soak and layout sweeps (hours)
#
# Ends with "N passed, N failed, N skipped"; exit status 0 only if none failed.
set -u
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

long=no
case ${1-} in
'') ;;
--long) long=yes ;;
-h | --help)
    sed -n '2,8s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
*) die "unknown option '$1': there is only --long" ;;
esac
export GTRAIN_TEST_LONG=$long

passed=0
failed=0
skipped=0
skips=()
failures=()
started=$SECONDS

# one NAME COMMAND...: a check that passes or fails as a whole.
one() {
    local name=$1 log
    shift
    log=$(mktemp)
    if ("$@") >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok      $name"
    else
        failed=$((failed + 1))
        failures+=("$name")
        echo "FAILED  $name"
        tail -n 30 "$log" | sed 's/^/        /'
    fi
    rm -f "$log"
}

# tally NAME FILE: count the TAP lines of a run; show what failed, remember what was skipped and why.
tally() {
    local name=$1 file=$2 p f s
    s=$(grep -cE '^ok .*# *(SKIP|skip)' "$file")
    p=$(($(grep -cE '^ok ' "$file") - s))
    f=$(grep -cE '^not ok ' "$file")
    passed=$((passed + p))
    failed=$((failed + f))
    skipped=$((skipped + s))
    while IFS= read -r line; do
        failures+=("$name: $line")
    done < <(grep -E '^not ok ' "$file")
    while IFS= read -r line; do
        skips+=("$name: $line")
    done < <(grep -E '^ok .*# *(SKIP|skip)' "$file" | sed -E 's/^ok [0-9]+ *-? *//')
    printf '%-7s %s: %d passed, %d failed, %d skipped (%d s so far)\n' \
        "$([ "$f" -eq 0 ] && echo ok || echo FAILED)" "$name" "$p" "$f" "$s" $((SECONDS - started))
}

# unit NAME BUILD-DIR: `make check` there. A test program that died counts as failed although its TAP
# has no line for it.
unit() {
    local name=$1 dir=$2 tap trs
    make -C "$dir" -j"$(nproc)" check >"$dir/check.log" 2>&1 </dev/null
    local status=$?
    tap=$(mktemp)
    while IFS= read -r trs; do
        local log=${trs%.trs}.log test
        test=$(basename "${trs%.trs}")
        grep -E '^(not )?ok ' "$log" | sed -E "s/^((not )?ok [0-9]+ *-? *)/\1$test: /" >>"$tap"
        if grep -qE '^:test-result: ERROR' "$trs"; then
            echo "not ok 0 - $test ended early or miscounted: $log" >>"$tap"
            tail -n 25 "$log" | sed 's/^/        /'
        fi
        if grep -q '^not ok' "$log"; then
            grep -B2 -A12 '^not ok' "$log" | head -n 60 | sed 's/^/        /'
        fi
    done < <(find "$dir" -name '*.trs' | sort)
    if [ ! -s "$tap" ] || { [ $status -ne 0 ] && ! grep -q '^not ok' "$tap"; }; then
        echo "not ok 0 - make check did not run through: $dir/check.log" >>"$tap"
        tail -n 25 "$dir/check.log" | sed 's/^/        /'
    fi
    tally "$name" "$tap"
    rm -f "$tap"
}

format_is_kept() {
    cd "$root" && git ls-files '*.c' '*.h' '*.cu' | xargs clang-format --dry-run -Werror
}

# What `make distcheck` holds: the tarball has all it needs and installs under DESTDIR. The tests have
# run by then, so they are not run again from the tarball except in the long mode.
dist_is_whole() {
    local dir=$1
    if [ $long = yes ]; then
        make -C "$dir" distcheck
    else
        make -C "$dir" distcheck TESTS= AM_MAKEFLAGS="TESTS= -j$(nproc)"
    fi
}

say "packages"
install_packages run test

work=$root/build-check
stage=$work/stage

say "gcc: build and unit tests"
one "gcc builds without a warning" \
    build "$work/gcc" --enable-werror --prefix="$stage" --with-slurm-plugindir="$stage/lib/slurm"
unit "unit tests" "$work/gcc"

say "clang with AddressSanitizer and UBSan: build and unit tests"
one "clang builds without a warning" \
    build "$work/clang" CC=clang --enable-werror --enable-sanitize
unit "unit tests, sanitized" "$work/clang"

say "form and distribution"
one "the C sources are formatted" format_is_kept
one "make distcheck" dist_is_whole "$work/gcc"

say "installed, on a real Slurm"
one "make install" make -C "$work/gcc" install
cluster_tap=$(mktemp)
if "$root/contrib/cluster.sh" down >/dev/null 2>&1; GTRAIN_PREFIX=$stage "$root/contrib/cluster.sh" up; then
    trap '"$root/contrib/cluster.sh" down >/dev/null 2>&1' EXIT
    (cd "$work/gcc" && GTRAIN_PREFIX=$stage GTRAIN_BUILD=$work/gcc GTRAIN_SOURCE=$root \
        make check-cluster) >"$cluster_tap" 2>&1 </dev/null
    status=$?
    grep -A12 '^not ok' "$cluster_tap" | head -n 120 | sed 's/^/        /'
    # Whoever was cut short has said nothing of the tests that did not run.
    promised=$(awk -F '[.][.]' '/^1[.][.][0-9]+$/ { n += $2 } END { print n + 0 }' "$cluster_tap")
    ran=$(grep -cE '^(not )?ok ' "$cluster_tap")
    if ! grep -q '^not ok' "$cluster_tap" &&
        [ $status -ne 0 -o "$ran" -eq 0 -o "$ran" -ne "$promised" ]; then
        tail -n 20 "$cluster_tap" | sed 's/^/        /'
        echo "not ok 0 - $ran of $promised cluster tests ran (make check-cluster: exit $status)" >>"$cluster_tap"
    fi
    tally "cluster tests" "$cluster_tap"
else
    echo "not ok 0 - the one-machine cluster came up" >"$cluster_tap"
    tally "cluster tests" "$cluster_tap"
fi
rm -f "$cluster_tap"

say "quickstart, the 60-second version"
one "quickstart --short" env GTRAIN_STAGE="$stage" "$root/contrib/quickstart.sh" --short

"$root/contrib/cluster.sh" down >/dev/null 2>&1
trap - EXIT

if [ ${#skips[@]} -gt 0 ]; then
    say "skipped"
    printf '  %s\n' "${skips[@]}"
fi
if [ ${#failures[@]} -gt 0 ]; then
    say "failed"
    printf '  %s\n' "${failures[@]}"
else
    say "all is well after $((SECONDS - started)) s; next: contrib/quickstart.sh trains a model on this machine"
fi
echo
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
