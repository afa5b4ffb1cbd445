#!/bin/bash
# failures.sh [--table FILE] [BATS-ARGS...] - provoke every failure that failures.bats knows, on the
# cluster of contrib/cluster.sh, and print what became of each as a Markdown table; if all is well,
# write it to FILE, too (doc/failures.md was made so).
#
# `GTRAIN_PREFIX` says which gtrain, as for the other cluster tests. Exit status 0: all ended as they
# should.
set -u
here=$(cd "$(dirname "$0")" && pwd)
table=
case ${1-} in
-h | --help)
    sed -n '2,7s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
--table)
    table=$(realpath -m "${2:?--table needs a file}")
    shift 2
    ;;
esac
GTRAIN_FAILURES_ROWS=$(mktemp)
export GTRAIN_FAILURES_ROWS GTRAIN_TEST_LONG=yes
trap 'rm -f "$GTRAIN_FAILURES_ROWS"' EXIT
bats --tap "$@" "$here/failures.bats" >&2
status=$?

print_table() {
    cat <<END
# What happens when something dies

Each line is provoked by \`tests/cluster/failures.sh --table doc/failures.md\` on the one-machine cluster of
\`contrib/cluster.sh\`: four nodes that train with two pipeline stages and two replicas, one spare where nothing
else is said, a patience of 2 s (\`resilience.patience_ms\`, by default 10 s), as long a deadline for a step at
least (\`resilience.stall_ms\`). A run that recovers has ended by itself with the losses of an undisturbed one,
bit for bit. Seconds: from the failure to the first step that is new, or to the end of the last process.
Computed again: steps that were complete before and had to be done once more.

| what | what becomes of it | seconds | computed again |
|---|---|---|---|
END
    cat "$GTRAIN_FAILURES_ROWS"
}

print_table
[ -z "$table" ] || [ $status != 0 ] || print_table >"$table"
exit $status
