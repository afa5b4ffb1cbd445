#!/bin/bash
# text.sh OUT - write about 4 MB of plain English prose to the file OUT, to train on.
#
# The text is the King James Bible as Debian packages it (bible-kjv, bible-kjv-text: public domain
# outside the United Kingdom, 3 MB to download): each chapter's name on a line of its own, each
# verse on one line without its number, an empty line between chapters. The same packages give the
# same bytes; the size and the first and last words are checked, so a change of format upstream is
# an error here and not a strange loss later. Packages are installed where they are missing, which
# needs root.
set -euo pipefail

say() { printf 'text.sh: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

[ $# -eq 1 ] || die "usage: text.sh OUT"
out=$1
[ ! -d "$out" ] || die "$out is a folder: name the file to write"
[ -d "$(dirname "$out")" ] || die "there is no folder $(dirname "$out"): make it first"

if ! command -v bible >/dev/null || [ ! -e /usr/lib/bible.data ]; then
    [ "$(id -u)" -eq 0 ] || die "needs the packages bible-kjv and bible-kjv-text: run as root, or apt-get install them"
    say "installing bible-kjv and bible-kjv-text"
    export DEBIAN_FRONTEND=noninteractive
    install() { apt-get install -y -qq --no-install-recommends bible-kjv bible-kjv-text; }
    # A fresh machine has no package lists yet; one that has them is not made to wait for new ones.
    install >/dev/null 2>&1 || { apt-get update -qq >&2 && install >&2; } ||
        die "apt-get could not install bible-kjv: see the lines above"
fi

temporary=$(mktemp "$out.XXXXXX")
trap 'rm -f "$temporary"' EXIT

# The program wraps at 79 columns. A line that begins with two spaces and a number opens a verse,
# one that begins with neither continues it, and a chapter's name stands between two empty lines.
LC_ALL=C bible 'gen1:1-rev22:21' </dev/null | LC_ALL=C awk '
    function flush() { if (verse != "") print verse; verse = "" }
    /^  [0-9]+ / { flush(); sub(/^  [0-9]+ /, ""); verse = $0; next }
    /^$/ { flush(); next }
    verse == "" { if (chapters++) print ""; print; print ""; next }
    { verse = verse " " $0 }
    END { flush() }' >"$temporary"

bytes=$(stat -c %s "$temporary")
[ "$bytes" -gt 4000000 ] && [ "$bytes" -lt 5000000 ] ||
    die "the text has $bytes bytes, about 4.2 million were expected: is bible-kjv another version?"
[ "$(sed -n 3p "$temporary")" = "In the beginning God created the heaven and the earth." ] &&
    [ "$(tail -c 6 "$temporary")" = "Amen." ] || die "the text does not begin or end as it should: is bible-kjv another version?"
chmod 644 "$temporary"
mv "$temporary" "$out"
trap - EXIT
say "$out: $bytes bytes"
