/* state_table.c - see state_table.h. */
#include "train/state_table.h"

#include <stdio.h>
#include <stdlib.h>

#include "train/reshard.h"

enum { NAME_BYTES = 128 }; /* longest name: prefix, layer number, role */

static const char *const part_prefix[STATE_TABLE_PARTS] = {"", "exp_avg.", "exp_avg_sq."};

static enum ckpt_dtype file_dtype(enum kdtype dtype)
{
    switch (dtype) {
    case K_F64:
        return CKPT_F64;
    case K_BF16:
        return CKPT_BF16;
    default:
        return CKPT_F32;
    }
}

static void describe(const struct state_tensor *t, enum kdtype dtype, const char *name,
                     struct ckpt_tensor *out)
{
    *out = (struct ckpt_tensor){.name = name, .dtype = file_dtype(dtype)};
    if (t->global.matrix) {
        out->dims = 2;
        out->global[0] = t->global.rows, out->global[1] = t->global.cols;
        out->offset[0] = t->slice.row, out->offset[1] = t->slice.col;
        out->shape[0] = t->slice.rows, out->shape[1] = t->slice.cols;
    } else {
        out->dims = 1;
        out->global[0] = out->shape[0] = t->global.cols;
    }
}

int state_table(const struct state *state, struct ckpt_tensor **tensors, int *n, char **names,
                struct err *err)
{
    *n = state->n * STATE_TABLE_PARTS + 1;
    *tensors = calloc((size_t)*n, sizeof **tensors);
    *names = malloc((size_t)*n * NAME_BYTES);
    if (!*tensors || !*names)
        return err_set(err, "no memory for the checkpoint's table");
    for (int i = 0; i + 1 < *n; i++) {
        const struct state_tensor *t = &state->tensors[i / STATE_TABLE_PARTS];
        char *name = *names + (size_t)i * NAME_BYTES;
        snprintf(name, NAME_BYTES, "%s%s", part_prefix[i % STATE_TABLE_PARTS], t->global.name);
        describe(t, state->dtype, name, &(*tensors)[i]);
    }
    (*tensors)[*n - 1] = (struct ckpt_tensor){.name = RESHARD_LAYOUT_NAME,
                                              .dtype = CKPT_I64,
                                              .dims = 1,
                                              .global = {LAYOUT_WORDS},
                                              .shape = {LAYOUT_WORDS}};
    return 0;
}
