# common.sh - what quickstart.sh and check.sh share. Sourced, not run.
#
# Defines: root (the source tree), say, die, install_packages KIND..., build DIR CONFIGURE-ARGS...

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() {
    printf '\n== %s\n' "$*"
}

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# Install what contrib/packages.txt lists for these kinds and is not there yet.
install_packages() {
    local kinds=" $* " kind name rest wanted=()
    while read -r kind name rest; do
        [[ $kinds == *" $kind "* ]] || continue
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) == installed ]] || wanted+=("$name")
    done < <(grep -v '^#' "$root/contrib/packages.txt")
    if [ ${#wanted[@]} -eq 0 ]; then
        echo "all packages are installed"
        return 0
    fi
    [ "$(id -u)" -eq 0 ] || die "needs root to install: ${wanted[*]}"
    echo "installing ${#wanted[@]} packages: ${wanted[*]}"
    local log=/tmp/gtrain-apt.$$.log try
    for try in 1 2 3; do
        if { apt-get update -q && DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=120 "${wanted[@]}"; } \
            >"$log" 2>&1 </dev/null; then
            rm -f "$log"
            return 0
        fi
        echo "apt-get failed (try $try of 3)"
        sleep $((try * 3))
    done
    tail -n 20 "$log" >&2
    die "apt-get could not install the packages above; its whole output is in $log"
}

# Configure (once) and build in DIR with the given configure arguments; output goes to DIR/build.log.
build() {
    local dir=$1
    shift
    # A folder whose configure was cut short, or was for something else, is no base to build on.
    [ "$(cat "$dir/config.done" 2>/dev/null)" = "$*" ] || rm -rf "$dir"
    mkdir -p "$dir"
    if ! {
        { [ -x "$root/configure" ] && [ "$root/configure" -nt "$root/configure.ac" ]; } ||
            "$root/autogen.sh"
        cd "$dir"
        { [ -f config.done ] || { "$root/configure" "$@" && printf '%s' "$*" >config.done; }; } &&
            make -j"$(nproc)"
    } >"$dir/build.log" 2>&1; then
        grep -nE 'error|Error|warning' "$dir/build.log" | head -n 20 >&2
        tail -n 5 "$dir/build.log" >&2
        die "the build failed; all of its output is in $dir/build.log"
    fi
}
