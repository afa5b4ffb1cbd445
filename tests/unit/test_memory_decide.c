/* test_memory_decide.c - from what all nodes' slots hold, the state to go on from. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "memory.h"

/* "HOLDER:SLOT RANK GENERATION STEP", separated by commas, as the scans of three ranks, of a world
 * of two, or of `world`, where ranks that are equal modulo `parts` are replicas. */
static void make_scans(const char *text, int world, int parts, char *scans[3])
{
    FILE *out[3];
    size_t bytes[3];
    char word[32] = "";
    if (parts)
        snprintf(word, sizeof word, " parts=%d", parts);
    for (int i = 0; i < 3; i++)
        out[i] = open_memstream(&scans[i], &bytes[i]);
    while (*text) {
        int holder, slot, rank, generation, step, used = 0;
        assert_int_equal(
            sscanf(text, "%d:%d %d %d %d%n", &holder, &slot, &rank, &generation, &step, &used), 5);
        fprintf(out[holder],
                "%d claim v=1 run=r epoch=3 generation=%d step=%d samples=%d "
                "plan=00000000000000ff world=%d rank=%d node=n%d "
                "path=r.e3.g%d.s%d.r%d.safetensors bytes=10 digest=0000000%d%s note=s%dg%d\n",
                slot, generation, step, step * 8, world, rank, holder, generation, step, rank, rank,
                word, step, generation);
        text += used;
        text += strspn(text, ", ");
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(fclose(out[i]), 0);
}

static void decisions(void **state)
{
    (void)state;
    static const struct {
        const char *slots, *places, *note; /* "HOLDER:SLOT ..." in rank order; "": nothing */
        int generation, step;
    } table[] = {
        {"", "", "", 0, 0},
        {"0:0 0 1 5, 1:0 1 1 5", "0:0 1:0", "s5g1", 1, 5},
        {"0:0 0 1 5, 1:0 1 1 5, 0:1 0 1 6", "0:0 1:0", "s5g1", 1, 5}, /* 6 is not whole */
        {"0:0 0 1 5, 1:0 1 1 5, 0:1 0 1 6, 1:1 1 1 6", "0:1 1:1", "s6g1", 1, 6},
        {"0:0 0 1 5, 0:2 1 1 5", "0:0 0:2", "s5g1", 1, 5},            /* the partner's */
        {"0:2 1 1 5, 1:2 0 1 5", "1:2 0:2", "s5g1", 1, 5},            /* both */
        {"2:0 0 1 5, 0:1 0 1 5, 1:0 1 1 5", "0:1 1:0", "s5g1", 1, 5}, /* own first */
        {"2:0 0 1 5, 1:1 0 1 5, 1:0 1 1 5", "1:1 1:0", "s5g1", 1, 5},
        /* a later generation outranks a higher step */
        {"0:0 0 1 9, 1:0 1 1 9, 0:1 0 2 7, 1:1 1 2 7", "0:1 1:1", "s7g2", 2, 7},
        {"0:0 0 1 9, 1:0 1 1 9, 0:1 0 2 7", "0:0 1:0", "s9g1", 1, 9},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct ckpt_decision d;
        struct err err;
        char *scans[3], places[64] = "";
        make_scans(table[i].slots, 2, 0, scans);
        if (ckpt_memory_decide((const char *const *)scans, 3, &d, &err))
            fail_msg("%s", err.text);
        assert_int_equal(d.found, *table[i].places != 0);
        for (int r = 0; r < d.world; r++)
            snprintf(places + strlen(places), sizeof places - strlen(places), "%s%d:%d",
                     r ? " " : "", d.places[r].holder - 1, d.places[r].slot);
        assert_string_equal(places, table[i].places);
        if (d.found) {
            assert_true(d.memory);
            assert_string_equal(d.note, table[i].note);
            assert_int_equal(d.written_generation, table[i].generation);
            assert_int_equal(d.position.step, table[i].step);
            assert_int_equal(d.position.samples, table[i].step * 8);
            assert_int_equal(d.places[1].digest, 1);
        }
        ckpt_decision_free(&d);
        for (int k = 0; k < 3; k++)
            free(scans[k]);
    }
}

/* Four ranks of a pipeline of two: 0 and 2 hold the same bytes, and 1 and 3. */
static void replicas_stand_in(void **state)
{
    (void)state;
    static const struct {
        const char *slots, *places;
        int parts;
    } table[] = {
        {"0:0 0 1 5, 1:0 1 1 5", "0:0 1:0 0:0 1:0", 2},
        {"0:0 2 1 5, 1:0 1 1 5", "0:0 1:0 0:0 1:0", 2},
        {"0:0 2 1 5, 1:0 1 1 5, 2:2 0 1 5", "2:2 1:0 0:0 1:0", 2}, /* its own, where it is */
        {"0:0 0 1 5, 1:0 2 1 5", "", 2},                           /* nobody has the other stage */
        {"0:0 0 1 6, 1:0 2 1 6, 0:1 3 1 5, 1:1 2 1 5", "1:1 0:1 1:1 0:1", 2},
        {"0:0 0 1 5, 1:0 1 1 5", "", 0}, /* no replicas */
        {"0:0 0 1 5, 1:0 1 1 5", "", 3}, /* parts that make no sense */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct ckpt_decision d;
        struct err err;
        char *scans[3], places[64] = "";
        make_scans(table[i].slots, 4, table[i].parts, scans);
        if (ckpt_memory_decide((const char *const *)scans, 3, &d, &err))
            fail_msg("%s", err.text);
        for (int r = 0; r < d.world; r++)
            snprintf(places + strlen(places), sizeof places - strlen(places), "%s%d:%d",
                     r ? " " : "", d.places[r].holder - 1, d.places[r].slot);
        assert_string_equal(places, table[i].places);
        if (d.found)
            assert_string_equal(d.note, "s5g1");
        ckpt_decision_free(&d);
        for (int k = 0; k < 3; k++)
            free(scans[k]);
    }
}

static void nonsense_scans(void **state)
{
    (void)state;
    static const char *const table[] = {"x",  "9 claim",      "0claim", "0 claim v=1\n",
                                        "\n", "-1 claim v=1", "0 "};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct ckpt_decision d;
        struct err err;
        const char *scans[] = {"", table[i]};
        assert_int_equal(ckpt_memory_decide(scans, 2, &d, &err), -1);
        assert_non_null(strstr(err.text, "rank 1 says of its memory"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decisions),
        cmocka_unit_test(replicas_stand_in),
        cmocka_unit_test(nonsense_scans),
    };
    return cmocka_run_group_tests_name("memory decide", tests, NULL, NULL);
}
