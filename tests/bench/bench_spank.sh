#!/bin/bash
# bench_spank.sh [PAIRS] - what the plugin costs a job that does not ask for it.
#
# Runs `srun hostname` with and without the plugin's line in plugstack.conf, in pairs whose order
# alternates, on the cluster of contrib/cluster.sh, and prints the median of the paired differences
# with its spread. To be compared with the promise: less than 2 ms.
set -eu
pairs=${1:-60}
root=$(cd "$(dirname "$0")/../.." && pwd)
"$root/contrib/cluster.sh" up >/dev/null
eval "$("$root/contrib/cluster.sh" env)"
plugstack=${SLURM_CONF%/slurm.conf}/plugstack.conf
line=$(cat "$plugstack")
case $line in
optional*) ;;
*)
    echo "the cluster runs without the plugin: build it, or set GTRAIN_PREFIX, and bring it up again" >&2
    exit 1
    ;;
esac

set_line() {
    echo "$1" >"$plugstack.bench"
    mv "$plugstack.bench" "$plugstack"
}
trap 'set_line "$line"' EXIT

# Microseconds of one srun with this line.
time_one() {
    local from=${EPOCHREALTIME/./}
    set_line "$1"
    from=${EPOCHREALTIME/./}
    srun -N1 hostname >/dev/null
    echo $((${EPOCHREALTIME/./} - from))
}

time_one "$line" >/dev/null
time_one "# none" >/dev/null
for i in $(seq "$pairs"); do
    if [ $((i % 2)) = 0 ]; then
        with=$(time_one "$line")
        without=$(time_one "# none")
    else
        without=$(time_one "# none")
        with=$(time_one "$line")
    fi
    echo "$((with - without)) $without"
done | sort -n | awk -v n="$pairs" '
    { d[NR] = $1 / 1000; base[NR] = $2 / 1000 }
    END {
        m = asort_median(base)
        printf "srun hostname without the plugin: median %.2f ms\n", m
        printf "with it: %+.2f ms (median of %d pairs; quartiles %+.2f and %+.2f), ratio %.3f\n",
            d[int((n + 1) / 2)], n, d[int((n + 3) / 4)], d[int((3 * n + 3) / 4)],
            1 + d[int((n + 1) / 2)] / m
    }
    function asort_median(a,    i, j, t) {
        for (i = 2; i <= n; i++)
            for (j = i; j > 1 && a[j] < a[j - 1]; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
        return a[int((n + 1) / 2)]
    }'
