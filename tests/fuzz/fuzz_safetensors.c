/* fuzz_safetensors.c - libFuzzer target: a checkpoint file made of the fuzzer's bytes.
 *
 * The first byte chooses whether the header's own checksum is made right, so that the checks behind
 * it are reached too. The rest is the file; for short inputs the 8 length bytes are set, or the
 * fuzzer would spend its time on them. `make fuzz` builds it with clang; start from the corpus that
 * it makes of one good file. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/ckpt_mutate.h"
#include "record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void as_record(const uint8_t *data, size_t size)
{
    struct record r;
    struct err err;
    for (int kind = RECORD_CLAIM; kind <= RECORD_COMMIT; kind++)
        if (!record_parse((const char *)data, (int64_t)size, (enum record_kind)kind, &r, &err))
            record_free(&r);
}

static void as_scan(const uint8_t *data, size_t size)
{
    struct ckpt_decision d;
    struct err err;
    char *text = strndup((const char *)data, size);
    if (text && !ckpt_decide((const char *const *)&text, 1, -1, &d, &err))
        ckpt_decision_free(&d);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    uint8_t how = data[0];
    data++;
    size--;
    if (how % 8 == 6)
        as_record(data, size);
    if (how % 8 == 7)
        as_scan(data, size);
    if (how % 8 >= 6)
        return 0;
    size_t bytes = how & 1 ? size + 8 : size; /* odd: only the JSON was given */
    unsigned char *file = malloc(bytes + 1);
    if (!file)
        return 0;
    memcpy(file + (bytes - size), data, size);
    uint64_t length = size;
    if (how & 1)
        memcpy(file, &length, 8);
    if (how & 2)
        mutate_seal(file, bytes);
    mutate_use(file, bytes);
    free(file);
    return 0;
}
