/* test_directory.c - addresses are told to who asks, once all are there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "launch/directory.h"

enum { WORLD = 5 };

static void address_of(uint32_t rank, char text[64])
{
    snprintf(text, 64, "tcp 10.0.0.%u, port %u, and what is alike on all", rank, 40000 + rank);
}

static int publish(struct directory *d, uint32_t rank)
{
    char text[64];
    struct err err;
    address_of(rank, text);
    return directory_publish(d, rank, text, strlen(text), &err);
}

static int ask(struct directory *d, uint32_t rank, uint32_t turn, const uint32_t *wanted,
               uint32_t n)
{
    struct message_ask a = {.who = {rank, 1}, .turn = turn, .n = n};
    a.wanted = calloc(n + 1, sizeof *a.wanted);
    assert_non_null(a.wanted);
    if (n)
        memcpy(a.wanted, wanted, n * sizeof *wanted);
    int bad = directory_ask(d, &a);
    free(a.wanted);
    return bad;
}

/* The answer is due, and says what these ranks have published. */
static void expect_answer(struct directory *d, uint32_t rank, uint32_t turn, const uint32_t *wanted,
                          uint32_t n)
{
    int failed;
    uint32_t to, of;
    void *found[8];
    size_t lengths[8];
    char text[64];
    struct wire_frame *f = directory_answer(d, rank, &failed);
    assert_non_null(f);
    struct wire_message m = {.type = MESSAGE_ANSWER};
    m.payload = wire_frame_payload(f, &m.bytes);
    assert_int_equal(message_get_answer_to(&m, &to, &of), 0);
    assert_int_equal(to, rank);
    assert_int_equal(of, turn);
    assert_int_equal(message_get_answer(&m, n + 1, found, lengths), -1); /* to another question */
    m.bytes--;
    assert_int_equal(message_get_answer(&m, n, found, lengths), -1); /* cut */
    m.bytes++;
    assert_int_equal(message_get_answer(&m, n, found, lengths), 0);
    for (uint32_t i = 0; i < n; i++) {
        address_of(wanted[i], text);
        assert_int_equal(lengths[i], strlen(text));
        assert_string_equal(found[i], text);
        free(found[i]);
    }
    wire_frame_drop(f);
    assert_null(directory_answer(d, rank, &failed)); /* once */
}

static void answers(void **state)
{
    (void)state;
    static const uint32_t some[] = {4, 0, 4}, self[] = {2}, all[] = {0, 1, 2, 3, 4};
    struct directory d;
    struct err err;
    int failed;
    assert_int_equal(directory_open(&d, WORLD, &err), 0);
    assert_int_equal(ask(&d, 1, 0, some, 3), 0);
    assert_int_equal(ask(&d, 2, 7, all, 5), 0);
    assert_int_equal(ask(&d, 2, 8, self, 1), 0); /* in the other's place */
    for (uint32_t r = WORLD - 1; r > 0; r--) {
        assert_int_equal(publish(&d, r), 0);
        assert_int_equal(publish(&d, r), 0); /* told again: it counts once */
        assert_null(directory_answer(&d, 1, &failed));
        assert_int_equal(failed, 0);
    }
    assert_int_equal(publish(&d, 0), 1);
    assert_int_equal(publish(&d, 0), 0);
    expect_answer(&d, 1, 0, some, 3);
    expect_answer(&d, 2, 8, self, 1);
    assert_null(directory_answer(&d, 3, &failed)); /* it has not asked */
    assert_int_equal(ask(&d, 3, 0, all, 5), 0);
    expect_answer(&d, 3, 0, all, 5);
    assert_int_equal(ask(&d, 3, 1, NULL, 0), 0);
    expect_answer(&d, 3, 1, NULL, 0);
    directory_close(&d);
}

static void strange_questions(void **state)
{
    (void)state;
    static const uint32_t beyond[] = {0, WORLD}, fine[] = {0};
    struct directory d;
    struct err err;
    assert_int_equal(directory_open(&d, WORLD, &err), 0);
    assert_int_equal(ask(&d, 0, 0, beyond, 2), -1);
    assert_int_equal(ask(&d, WORLD, 0, fine, 1), -1);
    assert_int_equal(publish(&d, WORLD), 0);
    assert_int_equal(d.published, 0);

    /* A number of ranks that does not come with that many. */
    struct wire_frame *f = message_rank(MESSAGE_ASK, (struct message_rank){0, 1});
    wire_put_u32(f, 0);
    wire_put_u32(f, 0x40000000);
    wire_put_u32(f, 0);
    struct wire_message m = {.type = MESSAGE_ASK};
    struct message_ask a;
    m.payload = wire_frame_payload(f, &m.bytes);
    assert_int_equal(message_get_ask(&m, &a), -1);
    wire_frame_drop(f);
    directory_close(&d);
}

/* The next generation, of fewer ranks, begins with nothing. */
static void generations(void **state)
{
    (void)state;
    static const uint32_t two[] = {0, 2};
    struct directory d;
    struct err err;
    int failed;
    assert_int_equal(directory_open(&d, WORLD, &err), 0);
    for (uint32_t r = 0; r < WORLD; r++)
        publish(&d, r);
    assert_int_equal(ask(&d, 4, 0, two, 2), 0);
    directory_begin(&d, 3);
    assert_null(directory_answer(&d, 4, &failed));
    assert_int_equal(ask(&d, 1, 0, two, 2), 0);
    assert_int_equal(publish(&d, 2), 0);
    assert_int_equal(publish(&d, 1), 0);
    assert_null(directory_answer(&d, 1, &failed));
    assert_int_equal(publish(&d, 0), 1);
    expect_answer(&d, 1, 0, two, 2);
    directory_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers),
        cmocka_unit_test(strange_questions),
        cmocka_unit_test(generations),
    };
    return cmocka_run_group_tests_name("directory", tests, NULL, NULL);
}
