/* memory_rig.c - see memory_rig.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "memory_rig.h"

void rig_check(int rv, const struct err *err)
{
    if (rv)
        fail_msg("%s", err->text);
}

static int copy_out(void *arg, int index, void *host, struct err *err)
{
    struct rig *r = arg;
    (void)err;
    memcpy(host, r->state + (index ? 1000 : 0), index ? (WORDS - 1000) * 4 : 1000 * 4);
    return 0;
}

static int copy_in(void *arg, int index, int64_t at, const void *host, int64_t bytes,
                   struct err *err)
{
    struct rig *r = arg;
    (void)err;
    memcpy((char *)(r->state + (index ? 1000 : 0)) + at, host, (size_t)bytes);
    return 0;
}

static const void *where(void *arg, int index)
{
    struct rig *r = arg;
    return r->stands ? r->state + (index ? 1000 : 0) : NULL;
}

struct ckpt_io rig_io(struct rig *r)
{
    return (struct ckpt_io){.copy_out = copy_out, .copy_in = copy_in, .arg = r};
}

const struct ckpt_tensor rig_tensors[RIG_TENSORS] = {
    {.name = "small", .dtype = CKPT_F32, .dims = 1, .global = {1000}, .shape = {1000}},
    {.name = "large",
     .dtype = CKPT_F32,
     .dims = 1,
     .global = {WORDS - 1000},
     .shape = {WORDS - 1000}},
};

static void fill_state(struct rig *r, int64_t step)
{
    for (int i = 0; i < WORDS; i++)
        r->state[i] = (float)(i % 997) + (float)step / 1000;
}

void rig_reopen(struct rig *r, int rank, uint32_t generation)
{
    struct err err;
    struct ckpt_memory_options o = {.fds = r->fds,
                                    .where = where,
                                    .node = "n0",
                                    .run_id = "run",
                                    .rank = rank,
                                    .world = WORLD,
                                    .epoch = 3,
                                    .generation = generation,
                                    .plan_hash = 77};
    struct ckpt_io io = rig_io(r);
    ckpt_memory_close(r->m);
    rig_check(ckpt_memory_open(&r->m, &o, rig_tensors, RIG_TENSORS, &io, &err), &err);
}

void rig_begin(struct rig *r, int rank)
{
    struct err err;
    memset(r, 0, sizeof *r);
    for (int i = 0; i < CKPT_MEMORY_SLOTS; i++)
        r->fds[i] = memfd_create("test", MFD_CLOEXEC);
    rig_reopen(r, rank, 1);
    int64_t bytes = ckpt_memory_bytes(r->m);
    assert_int_equal(ckpt_memory_lacks(r->m, bytes), 4 * (bytes + CKPT_MEMORY_HEAD_BYTES));
    rig_check(ckpt_memory_take(r->m, bytes, &err), &err);
    assert_int_equal(ckpt_memory_lacks(r->m, bytes), 0);
}

void rig_end(struct rig *r)
{
    ckpt_memory_close(r->m);
    for (int i = 0; i < CKPT_MEMORY_SLOTS; i++)
        close(r->fds[i]);
}

int rig_try_take(struct rig *r, uint32_t generation, int64_t step, const char *note,
                 struct err *err)
{
    struct ckpt_key key = {3, generation, step};
    fill_state(r, step);
    if (ckpt_memory_begin(r->m, &key, step * 8, err))
        return -1;
    for (int i = 0; i < ckpt_memory_count(r->m); i++)
        rig_check(ckpt_memory_copy(r->m, i, err), err);
    return ckpt_memory_flush(r->m, err) || ckpt_memory_seal(r->m, note, err) ? -1 : 0;
}

void rig_take(struct rig *r, uint32_t generation, int64_t step)
{
    struct err err;
    rig_check(rig_try_take(r, generation, step, "", &err), &err);
}

void rig_confirm(struct rig *r, uint32_t generation, int64_t step, int ward)
{
    struct ckpt_key key = {3, generation, step};
    ckpt_memory_confirm(r->m, &key, ward);
}

int rig_lines(const struct rig *r)
{
    struct err err;
    int n = 0;
    char *text = ckpt_memory_scan(r->m, &err);
    assert_non_null(text);
    for (char *c = text; *c; c++)
        n += *c == '\n';
    free(text);
    return n;
}

bool rig_has(struct rig *r, uint32_t generation, int64_t step)
{
    struct err err;
    struct ckpt_key key = {3, generation, step};
    struct ckpt_file *file;
    struct ckpt_memory_head head;
    if (!ckpt_memory_find(r->m, &key))
        return false;
    const void *image = ckpt_memory_image(r->m, &head);
    rig_check(ckpt_file_open_memory(&file, image, (size_t)head.bytes, &err), &err);
    rig_check(ckpt_file_verify(file, &err), &err);
    float *large = malloc((WORDS - 1000) * sizeof *large);
    rig_check(ckpt_file_read(file, 1, large, &err), &err);
    fill_state(r, step);
    assert_memory_equal(large, r->state + 1000, (WORDS - 1000) * sizeof *large);
    free(large);
    ckpt_file_close(file);
    return true;
}
