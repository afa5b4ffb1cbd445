/* test_kernels_deferred.c - the deferring device: with the right events the numbers are those of
 * one stream, for any seed; with one missing they are wrong for some seed.
 *
 * The program stands for a step that overlaps: uploads, a computation, an exchange and a read-back,
 * each in its own stream. */
#include "test_kernels_help.h"

enum { N = 4, ROUNDS = 6, SEEDS = 50 };
enum { UP, COMPUTE, EXCHANGE, STREAMS };
enum { UPLOADED, COMPUTED, EXCHANGED, READ, EVENTS };

struct device {
    struct kernels *k;
    struct kstream *stream[STREAMS];
    struct kevent *event[EVENTS];
    struct kbuf in, work, total;
};

static struct device device_open(uint64_t seed)
{
    struct err err = {""};
    struct device d = {.k = kernels_open_deferred(kernels_open_cpu(1, &err), seed, &err)};
    assert_non_null(d.k);
    for (int i = 0; i < STREAMS; i++)
        assert_non_null(d.stream[i] = kernels_stream_open(d.k, &err));
    for (int i = 0; i < EVENTS; i++)
        assert_non_null(d.event[i] = kernels_event_open(d.k, &err));
    assert_int_equal(kernels_alloc(d.k, K_F64, N, &d.in, &err), 0);
    assert_int_equal(kernels_alloc(d.k, K_F64, N, &d.work, &err), 0);
    assert_int_equal(kernels_alloc(d.k, K_F64, N, &d.total, &err), 0);
    return d;
}

static void device_close(struct device *d)
{
    for (int i = 0; i < EVENTS; i++)
        kernels_event_close(d->k, d->event[i]);
    for (int i = 0; i < STREAMS; i++)
        kernels_stream_close(d->k, d->stream[i]);
    kernels_close(d->k);
}

static void then(struct device *d, int event, int from, int to)
{
    kernels_event_record(d->k, d->event[event], d->stream[from]);
    kernels_event_wait(d->k, d->stream[to], d->event[event]);
}

/* in = host; work = 2 in (compute); total += work (exchange); after the last round total is read.
 * missing: leave out the events of that number, or none (-1). */
static double program(uint64_t seed, int missing)
{
    struct device d = device_open(seed);
    struct err err = {""};
    double host[ROUNDS][N], total[N];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++)
            host[round][i] = round + 1;
        if (round > 0 && missing != COMPUTED)
            kernels_event_wait(d.k, d.stream[UP], d.event[COMPUTED]);
        KSUBMIT(d.k, d.stream[UP], UPLOAD, upload, .out = d.in, .host = host[round]);
        if (missing != UPLOADED)
            then(&d, UPLOADED, UP, COMPUTE);
        if (round > 0 && missing != EXCHANGED)
            kernels_event_wait(d.k, d.stream[COMPUTE], d.event[EXCHANGED]);
        KSUBMIT(d.k, d.stream[COMPUTE], ADD, add, .out = d.work, .a = d.in, .b = d.in);
        then(&d, COMPUTED, COMPUTE, EXCHANGE);
        KSUBMIT(d.k, d.stream[EXCHANGE], ADD, add, .out = d.total, .a = d.total, .b = d.work);
        kernels_event_record(d.k, d.event[EXCHANGED], d.stream[EXCHANGE]);
    }
    if (missing != READ)
        kernels_event_wait(d.k, d.stream[UP], d.event[EXCHANGED]);
    KSUBMIT(d.k, d.stream[UP], DOWNLOAD, download, .in = d.total, .host = total);
    kernels_event_record(d.k, d.event[READ], d.stream[UP]);
    assert_int_equal(kernels_event_sync(d.k, d.event[READ], clock_ms() + DEADLINE_MS, &err), 0);
    for (int i = 0; i < STREAMS; i++)
        assert_int_equal(kernels_stream_sync(d.k, d.stream[i], clock_ms() + DEADLINE_MS, &err), 0);
    device_close(&d);
    return total[0];
}

static void test_right_events(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        assert_true(program(seed, -1) == 2 * (1 + 2 + 3 + 4 + 5 + 6));
}

static void missing_event(int event)
{
    int wrong = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        wrong += program(seed, event) != 2 * (1 + 2 + 3 + 4 + 5 + 6);
    if (wrong == 0)
        fail_msg("leaving out event %d was not noticed with any of %d seeds", event, SEEDS);
}

static void test_missing_events(void **state)
{
    (void)state;
    missing_event(UPLOADED);
    missing_event(COMPUTED);
    missing_event(EXCHANGED);
    missing_event(READ);
}

/* A sync runs what it needs and nothing else: the other stream's upload reads the host memory only
 * when it is asked for. */
static void test_runs_no_more_than_needed(void **state)
{
    (void)state;
    struct device d = device_open(1);
    struct err err = {""};
    double host[N] = {1, 1, 1, 1}, got[N];
    KSUBMIT(d.k, d.stream[UP], UPLOAD, upload, .out = d.in, .host = host);
    KSUBMIT(d.k, d.stream[COMPUTE], FILL, fill, .out = d.work, .value = 5);
    assert_int_equal(kernels_stream_sync(d.k, d.stream[COMPUTE], clock_ms() + DEADLINE_MS, &err),
                     0);
    assert_true(((double *)kernels_address(d.k, d.work))[0] == 5);
    assert_true(((double *)kernels_address(d.k, d.in))[0] == 0);
    host[0] = 9;
    KSUBMIT(d.k, d.stream[UP], DOWNLOAD, download, .in = d.in, .host = got);
    assert_int_equal(kernels_stream_sync(d.k, d.stream[UP], clock_ms() + DEADLINE_MS, &err), 0);
    assert_true(got[0] == 9 && got[1] == 1);
    device_close(&d);
}

/* A wait stands for the record that was the latest when it was submitted. */
static void test_wait_keeps_its_record(void **state)
{
    (void)state;
    struct device d = device_open(3);
    struct err err = {""};
    KSUBMIT(d.k, d.stream[UP], FILL, fill, .out = d.in, .value = 1);
    then(&d, UPLOADED, UP, COMPUTE);
    KSUBMIT(d.k, d.stream[COMPUTE], COPY, copy, .out = d.work, .in = d.in);
    KSUBMIT(d.k, d.stream[UP], FILL, fill, .out = d.total, .value = 2);
    kernels_event_record(d.k, d.event[UPLOADED], d.stream[UP]);
    assert_int_equal(kernels_stream_sync(d.k, d.stream[COMPUTE], clock_ms() + DEADLINE_MS, &err),
                     0);
    assert_true(((double *)kernels_address(d.k, d.work))[0] == 1);
    assert_true(((double *)kernels_address(d.k, d.total))[0] == 0);
    assert_int_equal(kernels_event_sync(d.k, d.event[UPLOADED], clock_ms() + DEADLINE_MS, &err), 0);
    assert_true(((double *)kernels_address(d.k, d.total))[0] == 2);
    /* An event that was never recorded is no wait. */
    kernels_event_wait(d.k, d.stream[UP], d.event[READ]);
    assert_int_equal(kernels_event_sync(d.k, d.event[READ], clock_ms() + DEADLINE_MS, &err), 0);
    device_close(&d);
}

static void test_free_before_sync(void **state)
{
    (void)state;
    struct device d = device_open(1);
    struct err err = {""};
    KSUBMIT(d.k, d.stream[COMPUTE], FILL, fill, .out = d.work, .value = 5);
    kernels_free(d.k, &d.work);
    assert_int_equal(kernels_stream_sync(d.k, d.stream[COMPUTE], clock_ms() + DEADLINE_MS, &err),
                     -1);
    assert_string_equal(err.text, "free: a fill that uses the buffer has not been synced");
    device_close(&d);
}

static void test_close_before_sync(void **state)
{
    (void)state;
    struct device d = device_open(1);
    struct err err = {""};
    struct kstream *extra = kernels_stream_open(d.k, &err);
    KSUBMIT(d.k, extra, FILL, fill, .out = d.work, .value = 5);
    kernels_event_record(d.k, d.event[READ], extra);
    kernels_event_wait(d.k, d.stream[UP], d.event[READ]);
    kernels_stream_close(d.k, extra);
    assert_int_equal(kernels_stream_sync(d.k, d.stream[UP], clock_ms() + DEADLINE_MS, &err), -1);
    assert_string_equal(err.text,
                        "deferred: a stream was closed before a sync had passed all of it");
    device_close(&d);
}

/* The inner device's sticky error comes through. */
static void test_inner_error(void **state)
{
    (void)state;
    struct device d = device_open(1);
    struct err err = {""};
    KSUBMIT(d.k, d.stream[UP], ADD, add, .out = d.in, .a = d.in);
    assert_int_equal(kernels_stream_sync(d.k, d.stream[UP], clock_ms() + DEADLINE_MS, &err), -1);
    assert_string_equal(err.text, "add: b is not given");
    assert_non_null(strstr(kernels_signature(d.k), "cpu"));
    device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_events),
        cmocka_unit_test(test_missing_events),
        cmocka_unit_test(test_runs_no_more_than_needed),
        cmocka_unit_test(test_wait_keeps_its_record),
        cmocka_unit_test(test_free_before_sync),
        cmocka_unit_test(test_close_before_sync),
        cmocka_unit_test(test_inner_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
