/* test_launch_wire.c - messages cut, damaged and whole; the proof; the environment; the folder. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "launch/agent.h"
#include "launch/message.h"
#include "launch/rundir.h"
#include "launch/similar.h"

static void pair(struct wire *a, struct wire *b, size_t limit)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    wire_open(a, fds[0], limit);
    wire_open(b, fds[1], limit);
}

/* Send a frame and take it at the other end. */
static void pass(struct wire *a, struct wire *b, struct wire_frame *f, struct wire_message *m)
{
    struct err err;
    int got;
    wire_queue(a, f);
    do {
        assert_true(wire_flush(a) >= 0);
        assert_int_equal(wire_read(b), WIRE_OK);
        got = wire_next(b, m, &err);
        assert_true(got >= 0);
    } while (!got);
    assert_int_equal(wire_flush(a), 0);
}

/* HMAC-SHA256 of RFC 4231's kind, over our layout: computed with Python's hmac module,
 * hmac.new(bytes(range(32)), b"node".ljust(32, b"\0") + b"\x11" * 32 + b"\x22" * 32, "sha256"). */
static void proof_is_hmac_sha256(void **state)
{
    (void)state;
    struct auth_secret secret;
    unsigned char ours[AUTH_BYTES], theirs[AUTH_BYTES], mac[AUTH_BYTES], other[AUTH_BYTES];
    char hex[AUTH_HEX_BYTES];
    for (int i = 0; i < AUTH_BYTES; i++)
        secret.bytes[i] = (unsigned char)i;
    memset(ours, 0x11, sizeof ours);
    memset(theirs, 0x22, sizeof theirs);
    assert_int_equal(auth_proof(&secret, "node", ours, theirs, mac, NULL), 0);
    auth_hex(mac, hex);
    assert_string_equal(hex, "30270e30fa5364d47bfd0e2eccccfca4cb159f05504cb017186fb85bf855cd94");
    /* Played back as the other side's, or for other nonces, it is worth nothing. */
    assert_int_equal(auth_proof(&secret, "coordinator", ours, theirs, other, NULL), 0);
    assert_false(auth_equal(mac, other));
    assert_int_equal(auth_proof(&secret, "node", theirs, ours, other, NULL), 0);
    assert_false(auth_equal(mac, other));
    assert_true(auth_equal(mac, mac));
}

static void secrets_as_text(void **state)
{
    (void)state;
    unsigned char bytes[AUTH_BYTES], again[AUTH_BYTES];
    char hex[AUTH_HEX_BYTES];
    assert_int_equal(auth_random(bytes, NULL), 0);
    auth_hex(bytes, hex);
    assert_int_equal(auth_unhex(hex, again, NULL), 0);
    assert_memory_equal(bytes, again, sizeof bytes);
    hex[5] = 'G';
    assert_int_equal(auth_unhex(hex, again, NULL), -1);
    hex[5] = 0;
    assert_int_equal(auth_unhex(hex, again, NULL), -1);
}

static struct message_assign assignment(void)
{
    struct message_assign a = {.epoch = 3,
                               .since = 2,
                               .generation = 2,
                               .world = 16,
                               .local_world = 4,
                               .node_rank = -1,
                               .spares = 2,
                               .heartbeat_ms = 1000,
                               .patience_ms = 10000,
                               .master_port = 65535,
                               .plan = "model:\n",
                               .plan_bytes = 7};
    strcpy(a.master_address, "10.1.2.3");
    strcpy(a.run_id, "00ff00ff00ff00ff");
    strcpy(a.run_dir, "/somewhere");
    return a;
}

/* Cut at any length, every decoder says no and touches nothing beyond; whole, it says yes. */
static void cut_messages_are_refused(void **state)
{
    (void)state;
    struct wire a, b;
    struct wire_message m;
    struct message_assign in = assignment(), out;
    pair(&a, &b, 65536);
    pass(&a, &b, message_assign(&in), &m);
    size_t whole = m.bytes;
    for (size_t n = 0; n <= whole; n++) {
        unsigned char *copy = malloc(n ? n : 1); /* exactly n: a read beyond shows */
        assert_non_null(copy);
        memcpy(copy, m.payload, n);
        struct wire_message cut = {.type = m.type, .payload = copy, .bytes = n};
        int good = message_get_assign(&cut, &out);
        assert_int_equal(good, n == whole ? 0 : -1);
        if (!good) {
            assert_int_equal(out.node_rank, -1);
            assert_string_equal(out.plan, "model:\n");
            assert_string_equal(out.master_address, "10.1.2.3");
            assert_int_equal(out.master_port, 65535);
            message_assign_free(&out);
        }
        free(copy);
    }
    wire_close(&a);
    wire_close(&b);
}

/* Every byte of a registration changed to every value: decoded or refused, never worse. */
static void damaged_messages_do_no_harm(void **state)
{
    (void)state;
    struct wire a, b;
    struct wire_message m;
    struct message_register in = {.node_id = 1, .local_tasks = 2, .cores = 8}, out;
    strcpy(in.node, "n1");
    strcpy(in.topology, "s.l.n1");
    strcpy(in.address, "10.0.0.1");
    pair(&a, &b, 65536);
    pass(&a, &b, message_register(&in), &m);
    unsigned char *copy = malloc(m.bytes);
    assert_non_null(copy);
    for (size_t i = 0; i < m.bytes; i++)
        for (int v = 0; v < 256; v++) {
            memcpy(copy, m.payload, m.bytes);
            copy[i] = (unsigned char)v;
            struct wire_message bad = {.type = m.type, .payload = copy, .bytes = m.bytes};
            if (!message_get_register(&bad, &out)) {
                assert_non_null(memchr(out.node, 0, sizeof out.node));
                assert_non_null(memchr(out.address, 0, sizeof out.address));
            }
        }
    free(copy);
    wire_close(&a);
    wire_close(&b);
}

static void long_lengths_are_refused(void **state)
{
    (void)state;
    static const unsigned char frames[][WIRE_HEADER_BYTES] = {
        {129, 0, 0, 0, 1, 0, 1, 0},           /* one over the limit of strangers */
        {0xff, 0xff, 0xff, 0xff, 1, 0, 1, 0}, /* as long as can be said */
        {1, 0, 0, 0, 1, 0, 2, 0},             /* another version */
        {'G', 'E', 'T', ' ', '/', ' ', 'H', 'T'},
    };
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        struct wire a, b;
        struct wire_message m;
        struct err err;
        pair(&a, &b, WIRE_STRANGER_BYTES);
        assert_int_equal(send(a.fd, frames[i], WIRE_HEADER_BYTES, 0), WIRE_HEADER_BYTES);
        assert_int_equal(wire_read(&b), WIRE_OK);
        assert_int_equal(wire_next(&b, &m, &err), -1);
        assert_true(b.in_room <= WIRE_STRANGER_BYTES + WIRE_HEADER_BYTES);
        wire_close(&a);
        wire_close(&b);
    }
}

/* A megabyte through a socket that takes a little at a time, and small ones behind it. */
static void big_messages_in_pieces(void **state)
{
    (void)state;
    struct wire a, b;
    struct wire_message m;
    struct message_rank who = {.rank = 3, .generation = 2}, got;
    uint32_t turn;
    const unsigned char *at;
    size_t bytes, n = MESSAGE_BLOB_BYTES;
    unsigned char *blob = malloc(n);
    assert_non_null(blob);
    for (size_t i = 0; i < n; i++)
        blob[i] = (unsigned char)(i * 7);
    pair(&a, &b, WIRE_MAX_BYTES);
    pass(&a, &b, message_exchange(who, 9, blob, n), &m);
    assert_int_equal(message_get_exchange(&m, &got, &turn, &at, &bytes), 0);
    assert_int_equal(got.rank, 3);
    assert_int_equal(got.generation, 2);
    assert_int_equal(turn, 9);
    assert_int_equal(bytes, n);
    assert_memory_equal(at, blob, n);
    pass(&a, &b, message_progress(who, 1234567890123, 77), &m);
    int64_t step;
    assert_int_equal(message_get_progress(&m, &got, &step, &turn), 0);
    assert_true(step == 1234567890123);
    assert_int_equal(turn, 77);
    free(blob);
    wire_close(&a);
    wire_close(&b);
}

static void exchanged_blobs(void **state)
{
    (void)state;
    struct wire a, b;
    struct wire_message m;
    void *in[3] = {"one", "", "three"}, *out[3];
    size_t lengths[3] = {3, 0, 5}, got[3];
    uint32_t turn;
    pair(&a, &b, WIRE_MAX_BYTES);
    pass(&a, &b, message_exchanged(4, 3, in, lengths), &m);
    assert_int_equal(message_get_exchanged(&m, &turn, 2, out, got), -1); /* another world */
    m.bytes--;
    assert_int_equal(message_get_exchanged(&m, &turn, 3, out, got), -1);
    m.bytes++;
    assert_int_equal(message_get_exchanged(&m, &turn, 3, out, got), 0);
    assert_int_equal(turn, 4);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(got[i], lengths[i]);
        assert_string_equal(out[i], in[i]);
        free(out[i]);
    }
    wire_close(&a);
    wire_close(&b);
}

/* A blob is told by how it differs from the one before: by hand, and bounded. */
static void similar_blobs(void **state)
{
    (void)state;
    struct wire a, b;
    struct wire_message m;
    /* turn, world; 9 bytes, 0 as before, 9 new; 10 bytes, 4 as before, "X" new, 4 as before, "j".
     */
    static const unsigned char expected[] = "\4\0\0\0\2\0\0\0"
                                            "\x9\0\x9"
                                            "abcdefghi"
                                            "\xa\4\1X\4\1j";
    void *in[2] = {"abcdefghi", "abcdXfghij"};
    size_t lengths[2] = {9, 10};
    pair(&a, &b, WIRE_MAX_BYTES);
    pass(&a, &b, message_exchanged(4, 2, in, lengths), &m);
    assert_int_equal(m.bytes, sizeof expected - 1);
    assert_memory_equal(m.payload, expected, m.bytes);
    wire_close(&a);
    wire_close(&b);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

/* Each blob is the one before with some bytes changed, and longer or shorter. */
static void many_similar_blobs(void **state)
{
    enum { WORLD = 300, MOST = 700 };
    static unsigned char bytes[WORLD][MOST];
    void *in[WORLD], *out[WORLD];
    size_t lengths[WORLD], got[WORLD], all = 0;
    uint32_t random = 7, turn;
    (void)state;
    for (int i = 0; i < WORLD; i++) {
        memcpy(bytes[i], bytes[i ? i - 1 : 0], MOST);
        for (uint32_t k = next_random(&random) % 40; k; k--)
            bytes[i][next_random(&random) % MOST] = (unsigned char)next_random(&random);
        in[i] = bytes[i];
        lengths[i] = i % 17 ? MOST - next_random(&random) % (i % 5 ? 3 : MOST) : 0;
        all += lengths[i] + SIMILAR_MORE_BYTES;
    }
    struct wire a, b;
    struct wire_message m;
    pair(&a, &b, WIRE_MAX_BYTES);
    pass(&a, &b, message_exchanged(1, WORLD, in, lengths), &m);
    assert_true(m.bytes < all / 2);
    assert_int_equal(message_get_exchanged(&m, &turn, WORLD, out, got), 0);
    for (int i = 0; i < WORLD; i++) {
        assert_int_equal(got[i], lengths[i]);
        assert_memory_equal(out[i], in[i], got[i]);
        free(out[i]);
    }
    wire_close(&a);
    wire_close(&b);
}

static void bad_similar_blobs(void **state)
{
    static const struct {
        const char *name, *bytes;
        size_t n;
    } bad[] = {
        {"longer than allowed",
         "\x9\0\x9"
         "abcdefghi",
         12},
        {"a number without end", "\x80\x80\x80\x80\x80\x80\x80", 7},
        {"a pair of nothing", "\4\0\0\0\4abcd", 9},
        {"more than its length", "\4\0\5abcde", 8},
        {"more than the one before", "\6\4\2ab", 5},
        {"behind the one before", "\6\0\4abcd\2\0", 9},
        {"cut", "\4\0\4abc", 6},
        {"empty", "", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct wire_message m = {.payload = (const unsigned char *)bad[i].bytes, .bytes = bad[i].n};
        struct wire_reader r = wire_reader(&m);
        size_t got;
        void *blob = similar_get(&r, 8, "old", 3, &got);
        if (blob || !r.bad || got)
            fail_msg("%s: taken", bad[i].name);
    }
}

static void tasks_per_node(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t node, tasks;
    } cases[] = {
        {"2(x4),1", 0, 2}, {"2(x4),1", 3, 2}, {"2(x4),1", 4, 1}, {"2(x4),1", 5, 0}, {"8", 0, 8},
        {"8", 1, 0},       {"", 0, 0},        {"x", 0, 0},       {"2(x", 0, 0},     {"2(x0)", 0, 0},
        {"0", 0, 0},       {"1,2,3", 2, 3},   {"99999", 0, 0},   {"-1", 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (agent_local_tasks(cases[i].text, cases[i].node) != cases[i].tasks)
            fail_msg("'%s' node %u: %u, expected %u", cases[i].text, cases[i].node,
                     agent_local_tasks(cases[i].text, cases[i].node), cases[i].tasks);
}

static void hidden_variables(void **state)
{
    (void)state;
    assert_true(agent_env_hides("SLURM_GTRAIN_PROGRAM=x"));
    assert_true(agent_env_hides("GTRAIN_PLAN=x"));
    assert_true(agent_env_hides("GTRAIN_COLUMNS=80"));
    assert_true(agent_env_hides("SLURM_SPANK_OPTION_gtrain_gtrain-plan=x"));
    assert_true(agent_env_hides("_SLURM_SPANK_OPTION_gtrain_gtrain_plan=x"));
    assert_false(agent_env_hides("GTRAIN_PLANET=x"));
    assert_false(agent_env_hides("PATH=SPANK_OPTION_gtrain"));
    assert_false(agent_env_hides("SLURM_PROCID=0"));
}

/* ---- the run folder ---- */

static void locks_and_epochs(void **state)
{
    (void)state;
    char folder[] = "/tmp/gtrain-rundir-XXXXXX", dir[128], path[256];
    char id[RUNDIR_ID_BYTES], again[RUNDIR_ID_BYTES];
    uint32_t epoch;
    struct err err;
    assert_non_null(mkdtemp(folder));
    snprintf(dir, sizeof dir, "%s/a/b", folder);
    int lock = rundir_lock(dir, &err);
    assert_true(lock >= 0);
    assert_int_equal(rundir_lock(dir, &err), -1);
    assert_non_null(strstr(err.text, "is in use by"));
    assert_int_equal(rundir_next_epoch(dir, id, &epoch, &err), 0);
    assert_int_equal(epoch, 1);
    assert_int_equal(strspn(id, "0123456789abcdef"), 16);
    close(lock);
    lock = rundir_lock(dir, &err);
    assert_true(lock >= 0);
    assert_int_equal(rundir_next_epoch(dir, again, &epoch, &err), 0);
    assert_int_equal(epoch, 2);
    assert_string_equal(id, again);
    /* What is not ours is not written over. */
    static const char *const broken[] = {
        "",
        "{",
        "[]",
        "{\"run_id\": \"1\", \"epoch\": 1}",
        "{\"run_id\": \"0123456789abcdef\"}",
        "{\"run_id\": \"0123456789abcdef\", \"epoch\": -1}",
        "{\"run_id\": \"0123456789abcdef\", \"epoch\": 4294967295}"};
    snprintf(path, sizeof path, "%s/run.json", dir);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        fputs(broken[i], out);
        fclose(out);
        if (!rundir_next_epoch(dir, again, &epoch, &err))
            fail_msg("'%s' was taken", broken[i]);
        assert_non_null(strstr(err.text, path));
    }
    /* Nor is what never ends waited for. */
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(rundir_next_epoch(dir, again, &epoch, &err), -1);
    assert_non_null(strstr(err.text, path));
    close(lock);
    unlink(path);
    snprintf(path, sizeof path, "%s/lock", dir);
    unlink(path);
    rmdir(dir);
    snprintf(dir, sizeof dir, "%s/a", folder);
    rmdir(dir);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proof_is_hmac_sha256),
        cmocka_unit_test(secrets_as_text),
        cmocka_unit_test(cut_messages_are_refused),
        cmocka_unit_test(damaged_messages_do_no_harm),
        cmocka_unit_test(long_lengths_are_refused),
        cmocka_unit_test(big_messages_in_pieces),
        cmocka_unit_test(similar_blobs),
        cmocka_unit_test(many_similar_blobs),
        cmocka_unit_test(bad_similar_blobs),
        cmocka_unit_test(exchanged_blobs),
        cmocka_unit_test(tasks_per_node),
        cmocka_unit_test(hidden_variables),
        cmocka_unit_test(locks_and_epochs),
    };
    return cmocka_run_group_tests_name("launch_wire", tests, NULL, NULL);
}
