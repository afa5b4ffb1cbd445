/* fuzz_hf.c - libFuzzer target: a published folder made of the fuzzer's bytes.
 *
 * The first byte says what they are: config.json; the index, beside one good file; the header of a
 * single file, whose length is set right; or the whole file. Whatever is read must be an error or a
 * model, and the model's tensors are then read. The folder is made in TMPDIR: name one in memory.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hf/config.h"
#include "hf/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[200];

static void put(const char *name, const void *head, size_t head_bytes, const void *data,
                size_t bytes)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || (head_bytes && fwrite(head, 1, head_bytes, f) != head_bytes) ||
        (bytes && fwrite(data, 1, bytes, f) != bytes) || fclose(f))
        abort();
}

static void drop(const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

static void make_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    if (*folder)
        return;
    snprintf(folder, sizeof folder, "%s/gtrain-fuzz-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder))
        abort();
}

static void read_all(void)
{
    struct hf_source s;
    struct err err;
    float values[64];
    if (!hf_source_open(&s, folder, &err))
        for (int64_t i = 0; i < s.n_tensors; i++)
            for (int64_t at = 0, n; at < hf_source_count(&s.tensors[i]) && at < 1024; at += n) {
                n = hf_source_count(&s.tensors[i]) - at;
                n = n < 64 ? n : 64;
                if (hf_source_read(&s.tensors[i], at, n, values, &err))
                    break;
            }
    hf_source_close(&s);
}

static void read_config(void)
{
    char path[300];
    struct hf_config c;
    struct err err;
    snprintf(path, sizeof path, "%s/config.json", folder);
    if (!hf_config_read(path, &c, &err))
        hf_config_free(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* four bytes of data behind it, the last the string's own end */
    static const char good[] =
        "{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}\0\0\0";
    uint64_t length = size ? size - 1 : 0;
    if (!size)
        return 0;
    make_folder();
    drop("model.safetensors.index.json");
    switch (data[0] % 4) {
    case 0:
        put("config.json", NULL, 0, data + 1, size - 1);
        read_config();
        return 0;
    case 1:
        length = sizeof good - 4;
        put("model.safetensors", &length, sizeof length, good, sizeof good);
        put("model.safetensors.index.json", NULL, 0, data + 1, size - 1);
        break;
    case 2:
        put("model.safetensors", &length, sizeof length, data + 1, size - 1);
        break;
    default:
        put("model.safetensors", NULL, 0, data + 1, size - 1);
    }
    read_all();
    return 0;
}
