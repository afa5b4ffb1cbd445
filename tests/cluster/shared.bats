# The shared folder behind a run is slow, fails, is full, may not be written, hangs, goes away and comes
# back: training and the checkpoints on the nodes' own disks go on, each trouble is named once, and the
# copies go on when it is over.

load cluster.bash
load training.bash

steps=60

setup_file() {
    cluster_begin
    # As slowfs sees it, on every node: the folder behind it is one for all.
    write_train_plan "tensor: 1, pipeline: 2, data: 1" \
        "local: /local/gtrain-shared, every: 1, keep: 2, shared: $here/mnt/copies, shared_every: 2, shared_keep: 2, block_bytes: 65536"
    train_undisturbed ",checkpoint.local=$here/alone,checkpoint.shared=$here/alone.shared"
}

teardown_file() {
    cluster_finish
}

setup() {
    [ "$GTRAIN_CLUSTER_MODE" = namespaces ] || skip "in plain mode nodes share this host's mounts"
    [ -c /dev/fuse ] && [ -x "$GTRAIN_SLOWFS" ] || skip "no slowfs: libfuse3 was missing, or /dev/fuse is"
    begin_test
    mkdir -p "$here/back/data" "$here/mnt"
    set_mode none
    mounts mount
}

teardown() {
    set_mode none
    mounts umount
    end_test
}

set_mode() { # WORD
    echo "$1" >"$here/back/slowfs.new"
    mv "$here/back/slowfs.new" "$here/back/slowfs.mode"
}

mounts() { # mount | kill | umount
    local node pid
    for node in n0 n1; do
        read -r pid _ <"${SLURM_CONF%/etc/slurm.conf}/run/$node"
        case $1 in
        mount)
            nsenter -t "$pid" -m -- "$GTRAIN_SLOWFS" 30 "$here/back/data" "$here/mnt" >/dev/null 2>&1 3>&- &
            echo $! >>"$here/servers"
            wait_for 10 nsenter -t "$pid" -m -- mountpoint -q "$here/mnt"
            ;;
        umount) nsenter -t "$pid" -m -p -- umount -l "$here/mnt" 2>/dev/null || true ;;
        esac
    done
    [ "$1" != kill ] || kill -KILL $(cat "$here/servers")
}

copies() {
    grep -c '"kind":"shared"' "$dir/events.jsonl" || true
}

more_copies() { # THAN
    [ "$(copies)" -gt "$1" ]
}

# Steps are made and committed on the nodes' disks, whatever the shared folder does.
goes_on_locally() {
    local from
    from=$(newest_step)
    wait_for 20 at_step $((from + 8)) || show
    committed() {
        [ "$(sed -n 's/.*"kind":"checkpoint","step":\([0-9]*\),.*/\1/p' "$dir/events.jsonl" | tail -n 1)" -ge $((from + 4)) ]
    }
    wait_for 20 committed || show
}

notes() { # TEXT
    grep -c "\"kind\":\"note\".*$1" "$dir/events.jsonl" || true
}

@test "a shared folder that is slow, fails and comes back" {
    local word text before
    start_training 2 0 "" -w n0,n1
    wait_for 40 more_copies 0 || show
    set_mode hang
    goes_on_locally
    for word in EIO ENOSPC EROFS; do
        case $word in
        EIO) text="Input/output error" ;;
        ENOSPC) text="No space left on device" ;;
        EROFS) text="Read-only file system" ;;
        esac
        set_mode $word
        wait_for 20 grep -q "\"kind\":\"note\".*$text" "$dir/events.jsonl" || show
        goes_on_locally
        expect "lines that say $text" "$(notes "$text")" 1 || show
    done
    # A new generation begins with a folder that it cannot use, too.
    kill -KILL "$(worker_of 1)"
    wait_for 20 goes_on 1 2 || show
    before=$(copies)
    set_mode none
    wait_for 20 more_copies $before || show
    # Gone, as when its server is: what was opened there is no use any more.
    mounts kill
    wait_for 20 grep -q '"kind":"note".*Transport endpoint is not connected' "$dir/events.jsonl" || show
    goes_on_locally
    # Nor does a generation need it that begins then.
    kill -KILL "$(worker_of 0)"
    wait_for 20 goes_on 1 3 || show
    goes_on_locally
    before=$(copies)
    mounts umount
    mounts mount
    wait_for 20 more_copies $before || show
    # The last one is there, too, or this does not end well; and nothing half is.
    assert_same 2
    expect "halves" "$(find "$here/back" -name '*.part')" ""
    # Nothing was made below, while there was no file system.
    expect "files that went elsewhere" "$(find "$here/mnt" -mindepth 1)" ""
}
