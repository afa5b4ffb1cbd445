/* like.c - see like.h. */
#include "hf/like.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a tokenizer and generation need, by the names they have in published folders. */
static const char *const names[] = {
    "generation_config.json",  "tokenizer.json",      "tokenizer_config.json", "tokenizer.model",
    "added_tokens.json",       "chat_template.jinja", "chat_template.json",    "merges.txt",
    "special_tokens_map.json", "vocab.json",
};

enum { PIECE_BYTES = 1 << 16 };
#define FILE_MAX_BYTES                                                                             \
    (INT64_C(1) << 30) /* the largest vocabularies are tens of millions of bytes */

/* ---- is it the same model ---- */

static int differ(struct err *err, const char *key, int64_t there, int64_t here)
{
    return err_set(err, "another model: %s is %" PRId64 " there, %" PRId64 " in this run", key,
                   there, here);
}

static int compare(const struct plan_model *there, const struct plan_model *here, struct err *err)
{
    const struct {
        const char *key;
        int64_t there, here;
    } all[] = {
        {"num_hidden_layers", there->layers, here->layers},
        {"hidden_size", there->hidden, here->hidden},
        {"intermediate_size", there->ffn, here->ffn},
        {"num_attention_heads", there->heads, here->heads},
        {"num_key_value_heads", there->kv_heads, here->kv_heads},
        {"head_dim", there->head_dim, here->head_dim},
        {"vocab_size", there->vocab, here->vocab},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].there != all[i].here)
            return differ(err, all[i].key, all[i].there, all[i].here);
    if (there->tied != here->tied)
        return err_set(err, "another model: tie_word_embeddings is %s there, not in this run",
                       there->tied ? "true" : "false");
    return 0;
}

int like_open(const char *dir, const struct plan_model *model, struct hf_config *out,
              struct err *err)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/config.json", dir) >= (int)sizeof path)
        return err_set(err, "the path %.64s... is too long", dir);
    if (hf_config_read(path, out, err))
        return -1;
    if (!compare(&out->model, model, err))
        return 0;
    hf_config_free(out);
    return err_prefix(err, "%s", path);
}

/* ---- the files ---- */

/* -1 with errno 0: it is not there. */
static int open_source(const char *path, struct err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT) {
        errno = 0;
        return -1;
    }
    int rv = fd < 0 || fstat(fd, &st) ? err_set_errno(err, errno, "%s", path) : 0;
    if (!rv && !S_ISREG(st.st_mode))
        rv = err_set(err, "%s is not a file", path);
    if (!rv && st.st_size > FILE_MAX_BYTES)
        rv = err_set(err, "%s has %" PRId64 " bytes: at most %" PRId64 " are copied", path,
                     (int64_t)st.st_size, FILE_MAX_BYTES);
    if (!rv)
        return fd;
    if (fd >= 0)
        close(fd);
    errno = EINVAL;
    return -1;
}

static int copy_bytes(int from, const char *from_path, FILE *to, const char *to_path,
                      struct err *err)
{
    char piece[PIECE_BYTES];
    for (;;) {
        ssize_t n = read(from, piece, sizeof piece);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set_errno(err, errno, "reading %s", from_path);
        if (!n)
            break;
        if (fwrite(piece, 1, (size_t)n, to) != (size_t)n)
            return err_set_errno(err, errno, "writing %s", to_path);
    }
    return fflush(to) || fsync(fileno(to)) ? err_set_errno(err, errno, "writing %s", to_path) : 0;
}

/* 1: copied; 0: not there; or -1. */
static int copy_one(const char *dir, const char *to, const char *name, struct err *err)
{
    char from_path[PATH_MAX], to_path[PATH_MAX];
    if (snprintf(from_path, sizeof from_path, "%s/%s", dir, name) >= (int)sizeof from_path ||
        snprintf(to_path, sizeof to_path, "%s/%s", to, name) >= (int)sizeof to_path)
        return err_set(err, "the path %.64s... is too long", dir);
    int from = open_source(from_path, err);
    if (from < 0)
        return errno ? -1 : 0;
    FILE *out = fopen(to_path, "wxe");
    int rv = out ? copy_bytes(from, from_path, out, to_path, err)
                 : err_set_errno(err, errno, "%s", to_path);
    if (out)
        fclose(out);
    close(from);
    return rv ? -1 : 1;
}

int like_copy(const char *dir, const char *to, int *n, struct err *err)
{
    *n = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int copied = copy_one(dir, to, names[i], err);
        if (copied < 0)
            return -1;
        *n += copied;
    }
    return 0;
}
