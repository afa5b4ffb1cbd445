# The library as it is installed, and a program that is not gtrain built against it: contrib's example
# of checkpoints is killed, goes on with other numbers of processes, and ends as if nothing had been.

setup_file() {
    export work=$(mktemp -d "${TMPDIR:-/tmp}/gtrain-library-XXXXXX")
    unset MAKEFLAGS MFLAGS MAKELEVEL
    make -C "$GTRAIN_BUILD" -s install-libLTLIBRARIES install-includeHEADERS \
        install-gtrainincludeHEADERS install-gtrainbaseHEADERS install-pkgconfigDATA \
        DESTDIR="$work/root" >"$work/install.log" 2>&1 || { tail -5 "$work/install.log"; return 1; }
    variable() { sed -n "s/^$1 = //p" "$GTRAIN_BUILD/Makefile" | head -1; }
    local prefix
    prefix=$(variable prefix)
    export PKG_CONFIG_PATH=$(dirname "$(find "$work/root" -name gtrain.pc)")
    export use_library=$(pkg-config --define-variable=prefix="$work/root$prefix" --cflags --libs gtrain)
    export build_with="$(variable CC) $(variable SANITIZE_CFLAGS)"
    export LD_LIBRARY_PATH=$(dirname "$(find "$work/root" -name 'libgtrain.so' | head -1)")
    $build_with -std=gnu11 -Wall -Wextra -Werror -O2 "$GTRAIN_SOURCE/contrib/ckpt_example.c" \
        -o "$work/heat" $use_library -pthread
}

teardown_file() {
    rm -rf "$work"
}

last() { "$work/heat" "$@" | tail -1; }

@test "the library has every function that its headers declare" {
    local headers
    headers=$(find "$work/root" -name '*.h')
    [ "$(echo "$headers" | wc -l)" -eq 3 ]
    # A name before a parenthesis, at the start of a declaration.
    sed -e 's://.*::' $headers | tr '\n' ' ' | sed 's:/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/: :g' |
        grep -oE '\b(gtrain|ckpt|err)_[a-z0-9_]+ ?\(' | tr -d ' (' | sort -u >"$work/declared"
    nm -D --defined-only "$LD_LIBRARY_PATH/libgtrain.so" | awk '$2 == "T" {print $3}' | sort -u \
        >"$work/defined"
    [ "$(wc -l <"$work/declared")" -gt 60 ]
    run comm -23 "$work/declared" "$work/defined"
    echo "$output"
    [ -z "$output" ]
    # and nothing of the rooms inside
    ! grep -vE '^(gtrain|ckpt|err)_' "$work/defined"
}

@test "the man page names every function of ckpt.h" {
    for name in $(grep '^ckpt_' "$work/declared"); do
        grep -q "\b$name\b" "$GTRAIN_SOURCE/doc/libgtrain-ckpt.3" || { echo "$name"; missing=1; }
    done
    [ -z "$missing" ]
}

@test "killed and restored, with as many, fewer and more processes" {
    whole=$(last "$work/whole" 4 160)
    [[ $whole == *"after 160 steps" ]]
    [ "$(last "$work/alone" 1 160)" = "$whole" ]
    for ranks in 4 3 7; do
        run "$work/heat" "$work/$ranks" 4 160 --kill 70
        [ "$status" -eq 1 ]
        [[ $output == *"a process died"* ]]
        run "$work/heat" "$work/$ranks" "$ranks" 160
        echo "$output"
        [ "$status" -eq 0 ]
        [[ ${lines[0]} == "goes on from step "*" of 4 ranks" ]]
        [ "${lines[1]}" = "$whole" ]
    done
}

@test "a damaged file is never used" {
    "$work/heat" "$work/damaged" 2 60
    file=$(ls "$work"/damaged/*.s60.r0.safetensors)
    printf '!' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 5000)) conv=notrunc 2>/dev/null
    run "$work/heat" "$work/damaged" 3 80
    [ "$status" -eq 1 ]
    [[ $output == *"s60.r0.safetensors: bytes"* ]]
}
