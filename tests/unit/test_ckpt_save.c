/* test_ckpt_save.c - a save that runs behind its caller: what it holds, whom it waits for, how it
 * ends. */
#include "ckpt_help.h"

#include <pthread.h>
#include <semaphore.h>

enum { TENSORS = 6 };

/* A state whose copies can be held up. */
struct scene {
    char dir[256];
    struct state state;
    struct ckpt *ckpt;
    pthread_t caller;
    sem_t taken, go;
    bool hold_writer; /* its first copy waits for the caller's last */
    int by_caller, fails_at;
    sem_t sync_reached, sync_go;
    bool hold_sync, fail_sync;
    bool hold_flush, silent; /* silent: what fails does not say why */
};

static int slow_out(void *arg, int i, void *host, struct err *err)
{
    struct scene *s = arg;
    bool mine = pthread_equal(pthread_self(), s->caller);
    if (i == s->fails_at)
        return s->silent ? -1 : err_set(err, "the device is gone");
    if (s->hold_writer && !mine) {
        sem_post(&s->taken);
        sem_wait(&s->go);
    }
    state_out(&s->state, i, host, err);
    if (mine && ++s->by_caller == TENSORS - 1)
        sem_post(&s->go);
    return 0;
}

static int state_back(void *arg, int i, int64_t at, const void *host, int64_t bytes,
                      struct err *err)
{
    return state_in(&((struct scene *)arg)->state, i, at, host, bytes, err);
}

static int slow_flush(void *arg, struct err *err)
{
    struct scene *s = arg;
    (void)err;
    if (s->hold_flush) {
        s->hold_flush = false;
        sem_wait(&s->sync_go);
    }
    return 0;
}

static ssize_t slow_sync(void *arg, enum ckpt_op op, size_t bytes)
{
    struct scene *s = arg;
    if (op == CKPT_OP_SYNC && s->fail_sync)
        return -EIO;
    if (op == CKPT_OP_SYNC && s->hold_sync) {
        s->hold_sync = false;
        sem_post(&s->sync_reached);
        sem_wait(&s->sync_go);
    }
    return (ssize_t)bytes;
}

static int scene_make(void **out)
{
    static struct scene s;
    static struct ckpt_hook hook;
    struct err err;
    s = (struct scene){.caller = pthread_self(), .fails_at = -1};
    hook = (struct ckpt_hook){.allow = slow_sync, .arg = &s};
    sem_init(&s.taken, 0, 0), sem_init(&s.go, 0, 0);
    sem_init(&s.sync_reached, 0, 0), sem_init(&s.sync_go, 0, 0);
    for (int i = 0; i < TENSORS; i++)
        state_add(&s.state, CKPT_F32, 1, &(int64_t){1000 + i});
    help_scratch(s.dir, NULL);
    struct ckpt_options o = help_options(s.dir, 1);
    struct ckpt_io io = {
        .copy_out = slow_out, .copy_in = state_back, .flush = slow_flush, .arg = &s};
    ok(ckpt_open_hooked(&s.ckpt, &o, s.state.tensors, s.state.n, &io, &hook, &err));
    *out = &s;
    return 0;
}

static int scene_end(void **in)
{
    struct scene *s = *in;
    if (s->ckpt)
        ckpt_close(s->ckpt, help_soon());
    state_free(&s->state);
    help_remove(s->dir);
    return 0;
}

static void begin(struct scene *s, int64_t step)
{
    struct err err;
    state_fill(&s->state, step);
    ok(ckpt_save_begin(s->ckpt, &(struct ckpt_position){step, step * 8}, &err));
}

/* The file of the step holds the step's state. */
static void expect_file(struct scene *s, int64_t step)
{
    struct err err;
    char path[400];
    struct ckpt_file *f;
    struct ckpt_position position;
    snprintf(path, sizeof path, "%s/run-1.e1.g1.s%lld.r0.safetensors", s->dir, (long long)step);
    ok(ckpt_file_open(&f, path, &err));
    ok(ckpt_restore(s->ckpt, f, &position, &err));
    ckpt_file_close(f);
    assert_int_equal(position.step, step);
    int wrong = state_differs(&s->state, step);
    if (wrong >= 0)
        fail_msg("tensor %d of step %lld is of another step", wrong, (long long)step);
}

static void wait_all(struct scene *s)
{
    struct err err;
    int64_t step;
    ok(ckpt_wait(s->ckpt, help_soon(), &err));
    ok(ckpt_finished(s->ckpt, &step, &err));
}

static void test_state_may_change_after_the_join(void **in)
{
    struct scene *s = *in;
    struct err err;
    int64_t stall_ns = -1;
    ok(ckpt_save_join(s->ckpt, &stall_ns, &err)); /* nothing was begun */
    assert_int_equal(stall_ns, 0);
    begin(s, 3);
    ok(ckpt_save_join(s->ckpt, &stall_ns, &err));
    assert_true(stall_ns > 0);
    state_fill(&s->state, 4);
    wait_all(s);
    assert_true(ckpt_write_ns(s->ckpt) > 0);
    expect_file(s, 3);
}

/* The writer gets no core after its first tensor: the join copies all others. */
static void test_join_helps(void **in)
{
    struct scene *s = *in;
    struct err err;
    s->hold_writer = true;
    begin(s, 1);
    sem_wait(&s->taken);
    ok(ckpt_save_join(s->ckpt, NULL, &err));
    assert_int_equal(s->by_caller, TENSORS - 1);
    s->hold_writer = false;
    state_fill(&s->state, 2);
    wait_all(s);
    expect_file(s, 1);
}

/* A write that takes long: the next save begins at once, and its copy waits for the buffer. */
static void test_begin_does_not_wait(void **in)
{
    struct scene *s = *in;
    struct err err;
    int64_t step;
    s->hold_sync = true;
    begin(s, 1);
    ok(ckpt_save_join(s->ckpt, NULL, &err));
    sem_wait(&s->sync_reached);
    begin(s, 2);
    ok(ckpt_finished(s->ckpt, &step, &err));
    assert_int_equal(step, -1);
    refused(ckpt_save_begin(s->ckpt, &(struct ckpt_position){3, 24}, &err), "is joined");
    sem_post(&s->sync_go);
    ok(ckpt_save_join(s->ckpt, NULL, &err));
    state_fill(&s->state, 3);
    wait_all(s);
    expect_file(s, 1);
    expect_file(s, 2);
}

static void test_failed_copy_is_told_by_the_join(void **in)
{
    struct scene *s = *in;
    struct err err;
    int64_t step;
    s->fails_at = 2;
    begin(s, 1);
    refused(ckpt_save_join(s->ckpt, NULL, &err), "copying layers.2.w for a checkpoint: the device");
    wait_all(s); /* it does not fail twice */
    ok(ckpt_finished(s->ckpt, &step, &err));
    assert_int_equal(step, -1);
    assert_int_equal(help_count(s->dir, ".safetensors"), 0);
    s->fails_at = -1;
    begin(s, 1);
    ok(ckpt_save_join(s->ckpt, NULL, &err));
    wait_all(s);
    expect_file(s, 1);
}

/* The next save begins before the failed one's copies are flushed: it is written, and the failed
 * one is not, not even under the same step. */
static void test_save_after_a_failed_copy(void **in)
{
    struct scene *s = *in;
    struct err err;
    s->fails_at = 2;
    s->hold_flush = true;
    s->silent = true;
    begin(s, 1);
    refused(ckpt_save_join(s->ckpt, NULL, &err), "copying layers.2.w for a checkpoint: copy_out");
    s->fails_at = -1;
    begin(s, 1);
    refused(ckpt_wait(s->ckpt, -1, &err), "not done by the deadline"); /* long past */
    sem_post(&s->sync_go);
    ok(ckpt_save_join(s->ckpt, NULL, &err));
    wait_all(s);
    expect_file(s, 1);
}

/* Never joined: close waits for it, or cancels it; then nobody reads the state any more. */
static void test_close_before_the_join(void **in)
{
    struct scene *s = *in;
    begin(s, 1);
    ckpt_close(s->ckpt, help_soon());
    s->ckpt = NULL;
    assert_int_equal(help_count(s->dir, ".safetensors"), 1);
}

static void test_close_cancels_the_copy(void **in)
{
    struct scene *s = *in;
    begin(s, 1);
    ckpt_close(s->ckpt, 0);
    s->ckpt = NULL;
    state_free(&s->state);
    assert_int_equal(help_count(s->dir, ".part"), 0);
    assert_int_equal(help_count(s->dir, ".reserve"), 0);
}

/* ---- the image of a file that is being written ---- */

struct viewer {
    struct ckpt_image image;
    sem_t shown;
    bool declines;
};

static bool view(void *arg, const struct ckpt_image *image)
{
    struct viewer *v = arg;
    v->image = *image;
    sem_post(&v->shown);
    return !v->declines;
}

static void compare_image(const struct scene *s, const struct ckpt_image *image, int step,
                          uint32_t digest)
{
    struct err err;
    struct ckpt_file *file;
    struct ckpt_place place;
    ok(ckpt_own_file(s->ckpt, step, &place, &err));
    assert_int_equal(image->total, place.bytes);
    assert_int_equal(digest, place.digest);
    unsigned char *there = malloc((size_t)place.bytes);
    FILE *f = fopen(place.path, "re");
    assert_non_null(f);
    assert_int_equal(fread(there, 1, (size_t)place.bytes, f), place.bytes);
    fclose(f);
    assert_memory_equal(image->bytes, there, (size_t)place.bytes);
    free(there);
    ok(ckpt_file_open_memory(&file, image->bytes, (size_t)image->total, &err));
    ok(ckpt_file_verify(file, &err));
    ckpt_file_close(file);
    free(place.node), free(place.path);
}

/* The data are shown before the file is durable, the whole stands there once it is, and the next
 * copy waits until the image is released. */
static void test_image_of_the_file(void **in)
{
    struct scene *s = *in;
    struct err err;
    uint32_t digest;
    struct viewer v = {.declines = false};
    sem_init(&v.shown, 0, 0);
    ckpt_image_share(s->ckpt, view, &v);
    s->hold_sync = true;
    begin(s, 1);
    ok(ckpt_save_join(s->ckpt, NULL, &err));
    sem_wait(&v.shown);
    assert_int_equal(v.image.position.step, 1);
    assert_memory_equal(v.image.bytes + v.image.header_bytes, s->state.bytes[0],
                        (size_t)s->state.sizes[0]);
    sem_wait(&s->sync_reached);
    assert_int_equal(ckpt_image_wait(s->ckpt, clock_ms() + 1, &digest, &err), 0);
    sem_post(&s->sync_go);
    assert_int_equal(ckpt_image_wait(s->ckpt, help_soon(), &digest, &err), 1);
    compare_image(s, &v.image, 1, digest);
    begin(s, 2);
    assert_int_equal(ckpt_wait(s->ckpt, clock_ms() + 20, &err), -1); /* the image is kept */
    compare_image(s, &v.image, 1, digest);
    ckpt_image_release(s->ckpt);
    ok(ckpt_save_join(s->ckpt, NULL, &err));
    assert_int_equal(ckpt_image_wait(s->ckpt, help_soon(), &digest, &err), 1);
    compare_image(s, &v.image, 2, digest);
    ckpt_image_release(s->ckpt);
    v.declines = true;
    begin(s, 3);
    ok(ckpt_save_join(s->ckpt, NULL, &err));
    wait_all(s);
    ckpt_image_share(s->ckpt, NULL, NULL);
    begin(s, 4); /* nobody keeps that of step 3 */
    ok(ckpt_save_join(s->ckpt, NULL, &err));
    wait_all(s);
    assert_int_equal(v.image.position.step, 3);
    expect_file(s, 4);
    sem_destroy(&v.shown);
}

/* Who has sent the data hears that the file never came to be. */
static void test_image_of_a_failed_write(void **in)
{
    struct scene *s = *in;
    struct err err;
    uint32_t digest;
    struct viewer v = {.declines = false};
    sem_init(&v.shown, 0, 0);
    ckpt_image_share(s->ckpt, view, &v);
    s->fail_sync = true;
    begin(s, 1);
    ok(ckpt_save_join(s->ckpt, NULL, &err));
    sem_wait(&v.shown);
    assert_int_equal(ckpt_image_wait(s->ckpt, help_soon(), &digest, &err), -1);
    assert_non_null(strstr(err.text, "checkpoint of step 1 could not be written"));
    ckpt_image_release(s->ckpt);
    assert_int_equal(help_count(s->dir, ".safetensors"), 0);
    sem_destroy(&v.shown);
}

#define scene_test(f) cmocka_unit_test_setup_teardown(f, scene_make, scene_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        scene_test(test_state_may_change_after_the_join),
        scene_test(test_image_of_the_file),
        scene_test(test_image_of_a_failed_write),
        scene_test(test_join_helps),
        scene_test(test_begin_does_not_wait),
        scene_test(test_failed_copy_is_told_by_the_join),
        scene_test(test_save_after_a_failed_copy),
        scene_test(test_close_before_the_join),
        scene_test(test_close_cancels_the_copy),
    };
    return cmocka_run_group_tests_name("ckpt save", tests, NULL, NULL);
}
