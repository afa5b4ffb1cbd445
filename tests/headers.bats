# The installed headers, as a program in C and one in C++ meet them.

setup() {
    work=$(mktemp -d)
    mkdir -p "$work/gtrain/base"
    cp "$GTRAIN_SOURCE/runtime/gtrain.h" "$work"
    cp "$GTRAIN_SOURCE/ckpt/ckpt.h" "$work/gtrain"
    cp "$GTRAIN_SOURCE/runtime/base/err.h" "$work/gtrain/base"
}

teardown() {
    rm -rf "$work"
}

# Each header alone is complete; the names of the library are C's in both languages.
compile() { # COMPILER SUFFIX FLAGS...
    local compiler=$1 suffix=$2
    shift 2
    command -v "$compiler" >/dev/null || skip "no $compiler here"
    printf '#include <gtrain/ckpt.h>\nvoid *at = (void *)ckpt_scan;\n' >"$work/ckpt$suffix"
    printf '#include <gtrain.h>\nvoid *at = (void *)gtrain_open;\n' >"$work/gtrain$suffix"
    for name in ckpt_scan gtrain_open; do
        "$compiler" "$@" -Wall -Werror -I"$work" -I"$work/gtrain" -c "$work/${name%_*}$suffix" \
            -o "$work/object.o"
        nm "$work/object.o" | grep -q " U $name\$"
    done
}

@test "the installed headers in C99" {
    compile cc .c -std=c99
}

@test "the installed headers in C++11" {
    compile c++ .cc -std=c++11
}
