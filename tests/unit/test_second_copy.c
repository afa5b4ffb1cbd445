/* test_second_copy.c - whose state is sent to another node, and whose replica is copy enough. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "train/second_copy.h"

enum { MAX_WORLD = 16 };

static void choice(void **state)
{
    (void)state;
    static const struct {
        const char *leaves; /* one letter a node, in the order of ranks; . for no topology */
        int ranks;          /* a node */
        int parts;
        const char *partner;
    } table[] = {
        /* no replicas: as partners are chosen */
        {"ab", 1, 2, "1 0"},
        {"aabb", 1, 4, "2 3 0 1"},
        {"...", 1, 3, "1 2 0"},
        /* one replica, on the partner's node */
        {"..", 1, 1, "-1 -1"},
        {"..", 2, 2, "-1 -1 -1 -1"},
        {"..", 2, 1, "-1 -1 -1 -1"}, /* all four are: two of them elsewhere */
        {"aabb", 1, 2, "-1 -1 -1 -1"},
        /* one replica, on another: two nodes at once may be its own and that one's */
        {"....", 1, 2, "1 2 3 0"},
        {"....", 2, 4, "2 3 4 5 6 7 0 1"},
        {"aaaa", 1, 2, "1 2 3 0"},
        {"aaab", 1, 2, "3 0 1 2"},
        /* two replicas on two other nodes */
        {"......", 1, 2, "-1 -1 -1 -1 -1 -1"},
        {"aaaaaa", 1, 2, "-1 -1 -1 -1 -1 -1"},
        /* on two other nodes, but only one under another switch */
        {"aaabbb", 1, 2, "3 -1 5 0 -1 2"},
        /* on one and the same node */
        {"..", 4, 8, "4 5 6 7 0 1 2 3"},
        {".", 4, 2, "-1 -1 -1 -1"}, /* one node: nobody else is there */
        {"...", 3, 9, "3 4 5 6 7 8 0 1 2"},
        /* under the own switch, where a partner is not */
        {"abab", 1, 2, "1 0 3 2"},
        {"aabb", 1, 1, "-1 -1 -1 -1"},
        {"a", 1, 1, "-1"},
    };
    for (size_t c = 0; c < sizeof table / sizeof *table; c++) {
        struct partner_seat seats[MAX_WORLD];
        int partner[MAX_WORLD], nodes = (int)strlen(table[c].leaves),
                                world = nodes * table[c].ranks;
        char text[128] = "";
        memset(seats, 0, sizeof seats);
        for (int r = 0; r < world; r++) {
            int node = r / table[c].ranks;
            snprintf(seats[r].node, sizeof seats[r].node, "n%d", node);
            if (table[c].leaves[node] != '.')
                snprintf(seats[r].topology, sizeof seats[r].topology, "spine.%c.n%d",
                         table[c].leaves[node], node);
        }
        assert_int_equal(second_copy_choose(seats, world, table[c].parts, partner), 0);
        for (int r = 0; r < world; r++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", r ? " " : "",
                     partner[r]);
        if (strcmp(text, table[c].partner))
            fail_msg("case %zu: %s, not %s", c, text, table[c].partner);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choice),
    };
    return cmocka_run_group_tests_name("second copy", tests, NULL, NULL);
}
