/* token_file.h - one file of tokens, mapped into memory, whatever its format.
 *
 * Three formats: plain text (a token is a byte), llm.c's .bin, Megatron-LM's .bin with its .idx.
 * Opening checks everything that the headers claim against the sizes of the files. */
#ifndef GTRAIN_TOKEN_FILE_H
#define GTRAIN_TOKEN_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "plan/plan.h"

enum token_type { TOKEN_U8, TOKEN_I8, TOKEN_U16, TOKEN_I16, TOKEN_U32, TOKEN_I32, TOKEN_I64 };

struct token_file {
    void *map; /* the whole file, read-only; NULL if closed */
    size_t map_bytes;
    const unsigned char *tokens; /* inside map, aligned to nothing */
    int64_t count;
    enum token_type type;
};

/* path: for Megatron the .bin, the .idx or their common name without ending. 0, or -1 with err =
 * "PATH: offset N: what is wrong: what would be right" (the offset where there is one) and nothing
 * to close. */
int token_file_open(struct token_file *f, enum plan_data_format format, const char *path,
                    struct err *err);

/* Each of the tokens [first, first + count) must be in [0, vocab): reads them all. path: for err.
 */
int token_file_check(const struct token_file *f, const char *path, int64_t first, int64_t count,
                     int64_t vocab, struct err *err);

/* Copy the checked tokens [first, first + count) to out. */
void token_file_read(const struct token_file *f, int64_t first, int64_t count, int32_t *out);

void token_file_close(struct token_file *f);

#endif
