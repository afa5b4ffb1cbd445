/* names.h - what files in a checkpoint folder are called, and the order of checkpoints.
 *
 *   RUN.e1.g2.s300.r4.safetensors   rank 4's state after step 300, epoch 1, generation 2: complete
 *   RUN.e1.g2.s300.r4.part          the same while it is written
 *   RUN.e1.g2.s300.c4.part          a copy of it, of another node's, while that is written
 *   RUN.e1.g2.s300.p4.safetensors   rank 4's parities of that step (parity.h); .part likewise
 *   RUN.e1.g2.r4.reserve            space for that rank's next file
 *   RUN.NODE.commits                a node's commit log
 *
 * Anything else in the folder is somebody else's and never touched. A name is ours only in exactly
 * this spelling: no leading zeros, no other characters. */
#ifndef GTRAIN_CKPT_NAMES_H
#define GTRAIN_CKPT_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Checkpoints are ordered by (epoch, generation, step): a later start outranks a higher step. */
struct ckpt_key {
    uint32_t epoch, generation;
    int64_t step;
};

int key_compare(const struct ckpt_key *a, const struct ckpt_key *b);

enum {
    CKPT_RUN_MAX = 64,
    CKPT_NODE_MAX = 128,
    CKPT_NAME_ROOM = 256, /* of any file name, with its NUL */
    CKPT_WORLD_MAX = 1 << 20,
};

enum name_kind {
    NAME_FOREIGN,
    NAME_FILE,
    NAME_PART,
    NAME_COPY_PART,
    NAME_PARITY,
    NAME_PARITY_PART,
    NAME_RESERVE,
    NAME_LOG
};

struct ckpt_name {
    enum name_kind kind;
    char run[CKPT_RUN_MAX + 1];
    char node[CKPT_NODE_MAX + 1]; /* of a log */
    struct ckpt_key key;          /* step is -1 for a reserve */
    int rank;
};

/* Writes the name into out; always fits for names whose run and node are valid. */
void name_format(const struct ckpt_name *name, char out[CKPT_NAME_ROOM]);
/* NAME_FOREIGN in out->kind where it is not one of ours. */
void name_parse(const char *text, struct ckpt_name *out);

/* A name for a file that is complete. */
bool name_complete(enum name_kind kind);

bool name_run_valid(const char *run);   /* [0-9a-z-]{1,64} */
bool name_node_valid(const char *node); /* [0-9A-Za-z._-]{1,128}, not starting with a dot */

/* A decimal number without sign or leading zeros, at most `most`; *p moves past it. */
bool take_number(const char **p, int64_t most, int64_t *out);
/* Exactly `digits` lower-case hex digits. */
bool take_hex(const char **p, int digits, uint64_t *out);

#endif
