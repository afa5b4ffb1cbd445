/* ckpt_mutate.h - makes hostile files out of good ones; shared by the mutation test and the fuzz
 * target. */
#ifndef GTRAIN_TESTS_CKPT_MUTATE_H
#define GTRAIN_TESTS_CKPT_MUTATE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt.h"
#include "crc.h"
#include "layout.h"

/* Makes the header's own checksum right again where its field is found, so that a changed header
 * gets past it to the checks behind. */
static inline void mutate_seal(unsigned char *file, size_t bytes)
{
    static const char field[] = "\"gtrain.header_crc32c\":\"";
    uint64_t length;
    if (bytes < 8)
        return;
    memcpy(&length, file, 8);
    if (length > bytes - 8)
        return;
    unsigned char *at = memmem(file + 8, length, field, sizeof field - 1);
    if (!at || (size_t)(file + 8 + length - at) < sizeof field - 1 + 8)
        return;
    char digits[9];
    at += sizeof field - 1;
    memcpy(at, "00000000", 8);
    snprintf(digits, sizeof digits, "%08x", crc32c(0, file, 8 + length));
    memcpy(at, digits, 8);
}

/* Does with the bytes whatever a restore could. 0: they were taken for a good file. */
static inline int mutate_use(const unsigned char *file, size_t bytes)
{
    struct err err;
    struct ckpt_file *f;
    if (ckpt_file_open_memory(&f, file, bytes, &err))
        return -1;
    int rv = ckpt_file_verify(f, &err);
    for (int i = 0; i < ckpt_file_count(f); i++) {
        struct ckpt_tensor t;
        ckpt_file_tensor(f, i, &t);
        int64_t n = dtype_bytes(t.dtype);
        for (int d = 0; d < t.dims; d++)
            if (!t.shape[d])
                n = 0;
        for (int d = 0; d < t.dims && n; d++)
            n *= t.shape[d];
        void *host = malloc((size_t)n + 1);
        if (ckpt_file_read(f, i, host, &err))
            rv = -1;
        free(host);
    }
    ckpt_file_close(f);
    return rv;
}

#endif
