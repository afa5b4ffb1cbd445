/* test_parity.c - what a group of ranks keeps of each other's files is enough to have any of them
 * again, bit for bit, and never taken where it is not enough or not right. */
#include "parity_help.h"

#include <isa-l/erasure_code.h>

/* ---- the code ---- */

/* Each stripe has each element once, and both ways of asking agree. */
static void elements_are_dealt_out(void **state)
{
    (void)state;
    for (int members = 2; members <= 12; members++)
        for (int keeps = 1; keeps < members && keeps <= 4; keeps++) {
            struct parity_code code;
            struct err err;
            ok(parity_code_make(&code, members, keeps, 100000, &err));
            for (int stripe = 0; stripe < members; stripe++) {
                bool seen[16] = {false};
                for (int m = 0; m < members; m++) {
                    int e = parity_element(&code, m, stripe);
                    assert_in_range(e, 0, members - 1);
                    assert_false(seen[e]);
                    seen[e] = true;
                    assert_int_equal(parity_stripe(&code, m, e), stripe);
                }
            }
        }
}

/* The example of parity.h. */
static void the_example_is_right(void **state)
{
    (void)state;
    static const int table[4][4] = {{3, 2, 1, 0}, {0, 3, 2, 1}, {1, 0, 3, 2}, {2, 1, 0, 3}};
    struct parity_code code;
    struct err err;
    ok(parity_code_make(&code, 4, 1, 10000, &err));
    for (int m = 0; m < 4; m++)
        for (int stripe = 0; stripe < 4; stripe++)
            assert_int_equal(parity_element(&code, m, stripe), table[m][stripe]);
}

static void segments_cover_the_file(void **state)
{
    (void)state;
    static const struct {
        int members, keeps;
        int64_t longest, segment, chunks;
    } table[] = {
        {2, 1, 4096, 4096, 1},
        {2, 1, 4097, 8192, 1},
        {4, 1, 3 * 1048576, 1048576, 1},
        {4, 1, 3 * 1048576 + 1, 1048576 + 4096, 2},
        {6, 2, 1, 4096, 1},
        {5, 1, (INT64_C(16) << 20) - 1, INT64_C(4) << 20, 4},
        /* large: room for a header that is filled up, whole MiB */
        {5, 1, INT64_C(16) << 20, INT64_C(5) << 20, 5},
        {6, 2, INT64_C(4) << 30, (INT64_C(1) << 30) + (1 << 20), 1025},
    };
    struct parity_code code;
    struct err err;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        ok(parity_code_make(&code, table[i].members, table[i].keeps, table[i].longest, &err));
        assert_int_equal(code.segment, table[i].segment);
        assert_int_equal(code.chunks, table[i].chunks);
    }
    refused(parity_code_make(&code, 3, 3, 100, &err), "a group of 3 that keeps 3");
    refused(parity_code_make(&code, 3, 0, 100, &err), "keeps 0");
    refused(parity_code_make(&code, 1000, 1, 100, &err), "a group of 1000");
    refused(parity_code_make(&code, 3, 1, 0, &err), "files of 0 bytes");
}

/* Every choice of P elements gives every other: the code has no bad case. The product is worked out
 * by ISA-L's plain multiplication. */
static void any_elements_give_the_rest(void **state)
{
    (void)state;
    for (int members = 2; members <= 9; members++)
        for (int keeps = 1; keeps < members && keeps <= 4; keeps++) {
            struct parity_code code;
            struct err err;
            unsigned char data[16], element[16];
            ok(parity_code_make(&code, members, keeps, 4096, &err));
            int p = parity_data(&code);
            for (int i = 0; i < p; i++)
                data[i] = (unsigned char)(i * 37 + 11);
            for (int e = 0; e < members; e++) {
                element[e] = 0;
                for (int i = 0; i < p; i++)
                    element[e] ^= gf_mul(parity_weight(&code, e, i), data[i]);
            }
            for (unsigned set = 0; set < 1u << members; set++) {
                if (__builtin_popcount(set) != p)
                    continue;
                int chosen[16], n = 0;
                unsigned char factor[16];
                for (int e = 0; e < members; e++)
                    if (set & 1u << e)
                        chosen[n++] = e;
                for (int wanted = 0; wanted < members; wanted++) {
                    unsigned char sum = 0;
                    assert_true(parity_factors(&code, wanted, chosen, factor));
                    for (int i = 0; i < p; i++)
                        sum ^= gf_mul(factor[i], element[chosen[i]]);
                    assert_int_equal(sum, element[wanted]);
                }
            }
        }
}

static void sums_are_field_sums(void **state)
{
    (void)state;
    unsigned char from[5000], sum[5000], want[5000];
    for (size_t i = 0; i < sizeof from; i++) {
        from[i] = (unsigned char)(i * 7 + i / 256);
        sum[i] = want[i] = (unsigned char)(i * 13);
    }
    for (int factor = 0; factor < 256; factor += 5) {
        parity_add((unsigned char)factor, from, sum, 4096);
        for (size_t i = 0; i < 4096; i++)
            want[i] ^= gf_mul((unsigned char)factor, from[i]);
        assert_memory_equal(sum, want, sizeof sum);
    }
}

/* Which losses a group survives: f a file gone, p its parities, b both. */
static void losses_that_suffice(void **state)
{
    (void)state;
    static const struct {
        int keeps;
        const char *lost;
        bool good;
    } table[] = {
        {1, "....", true},    {1, "b...", true},   {1, "...b", true},   {1, "bb..", false},
        {1, "f...", true},    {1, "ff..", false},  {1, "pppp", true}, /* nothing to rebuild */
        {1, "fp..", false},   {2, "bb....", true}, {2, "b....b", true}, {2, "bbb...", false},
        {2, "ff.p..", false}, {2, "f..p..", true}, {1, "b.", true},     {1, "bb", false},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int members = (int)strlen(table[i].lost);
        bool files[16], parities[16];
        struct parity_code code = {.members = members, .keeps = table[i].keeps};
        for (int m = 0; m < members; m++) {
            files[m] = strchr(".p", table[i].lost[m]) != NULL;
            parities[m] = strchr(".f", table[i].lost[m]) != NULL;
        }
        if (parity_suffices(&code, files, parities) != table[i].good)
            fail_msg("keeps %d, lost %s", table[i].keeps, table[i].lost);
    }
}

/* ---- files ---- */

static char *read_whole(const char *path, long *bytes)
{
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    fseek(in, 0, SEEK_END);
    *bytes = ftell(in);
    rewind(in);
    char *data = malloc((size_t)*bytes);
    assert_int_equal(fread(data, 1, (size_t)*bytes, in), *bytes);
    fclose(in);
    return data;
}

static void file_of(const struct group *g, char kind, int member, int64_t step, char path[400])
{
    snprintf(path, 400, "%s/run-1.e1.g1.s%d.%c%d.safetensors", g->dirs[member], (int)step, kind,
             member);
}

static void lose_node(const struct group *g, int member)
{
    help_remove(g->dirs[member]);
}

static void flip(const char *path, double part)
{
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    long at = (long)((double)ftell(f) * part);
    fseek(f, at, SEEK_SET);
    int byte = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(byte ^ 4, f);
    fclose(f);
}

/* All pairs of nodes lost, or all single ones: bit for bit what was there. */
static void lose_and_rebuild(int members, int keeps, enum group_size size)
{
    struct group g;
    struct err err;
    group_make(&g, members, keeps, size, NULL);
    ok(group_open(&g, 1, &err));
    group_fill(&g, 5);
    ok(group_checkpoint(&g, 5, &err));
    for (int a = 0; a < members; a++)
        for (int b = keeps > 1 ? a + 1 : a; b < (keeps > 1 ? members : a + 1); b++) {
            struct ckpt_decision d;
            int lost[] = {a, b}, n = a == b ? 1 : 2;
            char *was[2], path[400];
            long bytes[2], now;
            for (int i = 0; i < n; i++) {
                file_of(&g, 'r', lost[i], 5, path);
                was[i] = read_whole(path, &bytes[i]);
                unlink(path);
                file_of(&g, 'p', lost[i], 5, path);
                char away[420];
                snprintf(away, sizeof away, "%s.away", path);
                assert_int_equal(rename(path, away), 0);
            }
            ok(group_decide(&g, &d, &err));
            assert_true(d.found);
            assert_int_equal(d.lost, n);
            for (int i = 0; i < n; i++) {
                ok(group_rebuild(&g, &d, lost[i], &err));
                file_of(&g, 'r', lost[i], 5, path);
                char *is = read_whole(path, &now);
                assert_int_equal(now, bytes[i]);
                assert_memory_equal(is, was[i], (size_t)now);
                free(is);
                free(was[i]);
                file_of(&g, 'p', lost[i], 5, path);
                char away[420];
                snprintf(away, sizeof away, "%s.away", path);
                assert_int_equal(rename(away, path), 0);
            }
            ckpt_decision_free(&d);
        }
    group_drop(&g);
}

static void any_node_of_four(void **state)
{
    (void)state;
    lose_and_rebuild(4, 1, GROUP_SMALL);
    lose_and_rebuild(2, 1, GROUP_SMALL);
}

static void any_two_nodes_of_five(void **state)
{
    (void)state;
    lose_and_rebuild(5, 2, GROUP_SMALL);
    lose_and_rebuild(3, 2, GROUP_SMALL);
}

static void files_of_several_chunks(void **state)
{
    (void)state;
    lose_and_rebuild(3, 1, GROUP_MIDDLE);
    lose_and_rebuild(3, 1, GROUP_LARGE);
}

/* ---- too much lost, damaged, or not what it should be ---- */

/* One more than a group keeps: the older one, or none, and what is missing is named. */
static void too_many_lost(void **state)
{
    (void)state;
    struct group g;
    struct err err;
    struct ckpt_decision d;
    group_make(&g, 4, 1, GROUP_SMALL, NULL);
    ok(group_open(&g, 1, &err));
    for (int step = 5; step <= 6; step++) {
        group_fill(&g, step);
        ok(group_checkpoint(&g, step, &err));
    }
    char path[400];
    for (int i = 1; i <= 2; i++) {
        file_of(&g, 'r', i, 6, path);
        assert_int_equal(unlink(path), 0);
    }
    ok(group_decide(&g, &d, &err));
    assert_true(d.found);
    assert_int_equal(d.position.step, 5);
    assert_int_equal(d.lost, 0);
    assert_non_null(strstr(d.report, "step 6"));
    assert_non_null(strstr(d.report, "rank 1's file on n1 is missing"));
    assert_non_null(strstr(d.report, "rank 2's file on n2 is missing"));
    ckpt_decision_free(&d);
    lose_node(&g, 1);
    lose_node(&g, 2);
    ok(group_decide(&g, &d, &err));
    assert_false(d.found);
    assert_int_equal(d.passed_over, 2);
    ckpt_decision_free(&d);
    group_drop(&g);
}

/* The caller that cannot rebuild is never given a file that is not there. */
static void plain_decisions_need_files(void **state)
{
    (void)state;
    struct group g;
    struct err err;
    struct ckpt_decision d;
    char *blobs[GROUP_MOST];
    group_make(&g, 3, 1, GROUP_SMALL, NULL);
    ok(group_open(&g, 1, &err));
    group_fill(&g, 5);
    ok(group_checkpoint(&g, 5, &err));
    lose_node(&g, 1);
    group_scan(&g, blobs);
    ok(ckpt_decide((const char *const *)blobs, 3, -1, &d, &err));
    assert_false(d.found);
    ckpt_decision_free(&d);
    /* A whole one is taken as before, with what parities there are. */
    ok(ckpt_decide_rebuilt((const char *const *)blobs, 3, -1, &d, &err));
    assert_int_equal(d.lost, 1);
    assert_null(d.places[1].node);
    assert_null(d.parities[1].node);
    assert_string_equal(d.parities[2].node, "n2");
    ckpt_decision_free(&d);
    for (int i = 0; i < 3; i++)
        free(blobs[i]);
    group_drop(&g);
}

/* One bit of a file, anywhere: found when it is read, and once marked the file is rebuilt. */
static void damaged_files_are_rebuilt(void **state)
{
    (void)state;
    static const double where[] = {0.001, 0.3, 0.7, 0.999};
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        struct group g;
        struct err err;
        struct ckpt_decision d;
        struct ckpt_file *f = NULL;
        char path[400], *blobs[GROUP_MOST];
        long bytes, now;
        group_make(&g, 4, 1, GROUP_SMALL, NULL);
        ok(group_open(&g, 1, &err));
        group_fill(&g, 5);
        ok(group_checkpoint(&g, 5, &err));
        file_of(&g, 'r', 2, 5, path);
        char *was = read_whole(path, &bytes);
        flip(path, where[i]);
        assert_true(ckpt_file_open(&f, path, &err) || ckpt_file_verify(f, &err));
        ckpt_file_close(f);
        group_scan(&g, blobs);
        blobs[2] = ckpt_scan_mark(blobs[2], strrchr(path, '/') + 1, bytes, true);
        ok(ckpt_decide_rebuilt((const char *const *)blobs, 4, -1, &d, &err));
        assert_true(d.found);
        assert_int_equal(d.lost, 1);
        ok(group_rebuild(&g, &d, 2, &err));
        char *is = read_whole(path, &now);
        assert_int_equal(now, bytes);
        assert_memory_equal(is, was, (size_t)now);
        ckpt_decision_free(&d);
        /* and found whole again once that is said */
        blobs[2] = ckpt_scan_mark(blobs[2], strrchr(path, '/') + 1, bytes, false);
        ok(ckpt_decide_rebuilt((const char *const *)blobs, 4, -1, &d, &err));
        assert_int_equal(d.lost, 0);
        ckpt_decision_free(&d);
        for (int k = 0; k < 4; k++)
            free(blobs[k]);
        free(is);
        free(was);
        group_drop(&g);
    }
}

/* One bit of what a file is rebuilt from: an error, never wrong bytes; the damaged member marked
 * too, two are lost, which one parity does not give. */
static void damaged_sources_are_seen(void **state)
{
    (void)state;
    static const struct {
        char kind;
        double where;
    } table[] = {{'r', 0.002}, {'r', 0.5}, {'p', 0.002}, {'p', 0.4}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct group g;
        struct err err;
        struct ckpt_decision d;
        char path[400], lost[400];
        group_make(&g, 3, 1, GROUP_SMALL, NULL);
        ok(group_open(&g, 1, &err));
        group_fill(&g, 5);
        ok(group_checkpoint(&g, 5, &err));
        lose_node(&g, 1);
        ok(group_decide(&g, &d, &err));
        file_of(&g, table[i].kind, 2, 5, path);
        flip(path, table[i].where);
        assert_int_equal(group_rebuild(&g, &d, 1, &err), -1);
        file_of(&g, 'r', 1, 5, lost);
        assert_int_equal(access(lost, F_OK), -1);
        assert_int_equal(help_count(g.dirs[1], ".part"), 0);
        ckpt_decision_free(&d);
        group_drop(&g);
    }
}

/* A parity file of a wrong step or member under the right name does not go unseen. */
static void other_parities_are_refused(void **state)
{
    (void)state;
    struct group g;
    struct err err;
    struct ckpt_decision d;
    char from[400], to[400];
    group_make(&g, 3, 1, GROUP_SMALL, NULL);
    ok(group_open(&g, 1, &err));
    for (int step = 5; step <= 6; step++) {
        group_fill(&g, step);
        ok(group_checkpoint(&g, step, &err));
    }
    file_of(&g, 'p', 2, 5, from);
    file_of(&g, 'p', 2, 6, to);
    assert_int_equal(rename(from, to), 0);
    lose_node(&g, 0);
    ok(group_decide(&g, &d, &err));
    assert_int_equal(d.position.step, 6);
    refused(group_rebuild(&g, &d, 0, &err), "is not the file that the commit record names");
    ckpt_decision_free(&d);
    group_drop(&g);
}

/* Retention takes parities with their files. */
static void parities_go_with_their_files(void **state)
{
    (void)state;
    struct group g;
    struct err err;
    group_make(&g, 3, 1, GROUP_SMALL, NULL);
    ok(group_open(&g, 1, &err));
    for (int step = 1; step <= 5; step++) {
        group_fill(&g, step);
        ok(group_checkpoint(&g, step, &err));
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(help_count(g.dirs[i], ".safetensors"), 4); /* two steps of each kind */
        char path[400];
        file_of(&g, 'p', i, 4, path);
        assert_int_equal(access(path, F_OK), 0);
        file_of(&g, 'p', i, 3, path);
        assert_int_equal(access(path, F_OK), -1);
    }
    group_close(&g);
    /* What a dead writer has left half-made goes when its successor opens. */
    char half[400];
    snprintf(half, sizeof half, "%s/run-1.e1.g1.s6.p1.part", g.dirs[1]);
    FILE *f = fopen(half, "w");
    assert_non_null(f);
    fclose(f);
    ok(group_open(&g, 2, &err));
    assert_int_equal(access(half, F_OK), -1);
    group_drop(&g);
}

static void stray_segments_are_refused(void **state)
{
    (void)state;
    struct group g;
    struct err err;
    group_make(&g, 3, 1, GROUP_SMALL, NULL);
    ok(group_open(&g, 1, &err));
    struct ckpt_parity *p = g.parities[0];
    size_t n = (size_t)parity_chunk_bytes(ckpt_parity_code(p), 0);
    unsigned char *chunk = calloc(2, n);
    refused(ckpt_parity_add(p, 1, chunk, n, &err), "not expected"); /* no step */
    ok(ckpt_parity_begin(p, &(struct ckpt_position){5, 40}, &err));
    refused(ckpt_parity_begin(p, &(struct ckpt_position){6, 48}, &err), "under way");
    refused(ckpt_parity_add(p, 0, chunk, n, &err), "member 0");
    refused(ckpt_parity_add(p, 3, chunk, n, &err), "member 3");
    refused(ckpt_parity_add(p, 1, chunk, n - 1, &err), "too few");
    refused(ckpt_parity_add(p, 1, chunk, 2 * n, &err), "are expected");
    refused(ckpt_parity_next(p, &err), "0 of 2 members");
    ok(ckpt_parity_add(p, 1, chunk, n, &err));
    refused(ckpt_parity_add(p, 1, chunk, n, &err), "not expected");
    free(chunk);
    group_drop(&g);
}

/* ---- records ---- */

#define HEAD                                                                                       \
    "commit v=1 run=r epoch=1 generation=1 step=5 samples=40 plan=0123456789abcdef world=2 "
#define RANK0 "rank=0 node=a path=r.e1.g1.s5.r0.safetensors bytes=4096 digest=00000001"
#define RANK1 " rank=1 node=b path=r.e1.g1.s5.r1.safetensors bytes=4096 digest=00000002"
#define PARITY0                                                                                    \
    " parity=r.e1.g1.s5.p0.safetensors parity_bytes=8192 parity_digest=0000000a parity_group=0 "   \
    "parity_member=0 parity_keeps=1"
#define PARITY1(group, member, keeps)                                                              \
    " parity=r.e1.g1.s5.p1.safetensors parity_bytes=8192 parity_digest=0000000b "                  \
    "parity_group=" group " parity_member=" member " parity_keeps=" keeps

static void records_name_groups(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good;
    } table[] = {
        {HEAD RANK0 RANK1, true},
        {HEAD RANK0 PARITY0 RANK1 PARITY1("0", "1", "1"), true},
        {HEAD RANK0 PARITY0 RANK1, false},                        /* a group of one */
        {HEAD RANK0 PARITY0 RANK1 PARITY1("1", "1", "1"), false}, /* groups with a gap */
        {HEAD RANK0 PARITY0 RANK1 PARITY1("0", "0", "1"), false}, /* a member twice */
        {HEAD RANK0 PARITY0 RANK1 PARITY1("0", "2", "1"), false}, /* one too far */
        {HEAD RANK0 PARITY0 RANK1 PARITY1("0", "1", "2"), false}, /* another number kept */
        {HEAD RANK0 PARITY0 RANK1 PARITY1("2", "1", "1"), false}, /* no such group */
        {HEAD RANK0 PARITY0 RANK1 PARITY1("0", "1", "0"), false},
        {HEAD RANK0 PARITY0 RANK1 PARITY1("0", "1", "17"), false},
        {HEAD RANK0 PARITY0 RANK1 PARITY1("0", "1", "1") " parity_member=1", false}, /* twice */
        {HEAD RANK0 " parity=../x" RANK1, false},
        {HEAD RANK0 " parity_group=0 parity_member=0" RANK1, false},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct record r;
        struct err err;
        int rv =
            record_parse(table[i].text, (int64_t)strlen(table[i].text), RECORD_COMMIT, &r, &err);
        if ((rv == 0) != table[i].good)
            fail_msg("%s: %s", table[i].text, rv ? err.text : "was taken");
        if (rv)
            continue;
        char *again = record_print(&r, RECORD_COMMIT);
        assert_string_equal(again, table[i].text);
        free(again);
        record_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_dealt_out),
        cmocka_unit_test(the_example_is_right),
        cmocka_unit_test(segments_cover_the_file),
        cmocka_unit_test(any_elements_give_the_rest),
        cmocka_unit_test(sums_are_field_sums),
        cmocka_unit_test(losses_that_suffice),
        cmocka_unit_test(any_node_of_four),
        cmocka_unit_test(any_two_nodes_of_five),
        cmocka_unit_test(files_of_several_chunks),
        cmocka_unit_test(too_many_lost),
        cmocka_unit_test(plain_decisions_need_files),
        cmocka_unit_test(damaged_files_are_rebuilt),
        cmocka_unit_test(damaged_sources_are_seen),
        cmocka_unit_test(other_parities_are_refused),
        cmocka_unit_test(parities_go_with_their_files),
        cmocka_unit_test(stray_segments_are_refused),
        cmocka_unit_test(records_name_groups),
    };
    return cmocka_run_group_tests_name("parity", tests, NULL, NULL);
}
