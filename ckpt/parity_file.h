/* parity_file.h - what a file of parities holds. Between parity_write.c and parity_read.c. */
#ifndef GTRAIN_CKPT_PARITY_FILE_H
#define GTRAIN_CKPT_PARITY_FILE_H

#include "parity.h"

/* The parities, as parity.h has it; and numbers: those below, then each member's file's bytes. */
#define PARITY_TENSOR       "gtrain.parity"
#define PARITY_ABOUT_TENSOR "gtrain.group"

enum {
    PARITY_ABOUT_MEMBERS,
    PARITY_ABOUT_KEEPS,
    PARITY_ABOUT_MEMBER,
    PARITY_ABOUT_SEGMENT,
    PARITY_ABOUT_FIXED,
    PARITY_ABOUT_MOST = PARITY_ABOUT_FIXED + PARITY_MEMBERS_MAX
};

#endif
