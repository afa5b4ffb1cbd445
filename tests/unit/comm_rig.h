/* comm_rig.h - what the cases of comm_cases.h are made of: values, buffers, everybody's group.
 * Running them is declared there. */
#ifndef GTRAIN_TEST_COMM_RIG_H
#define GTRAIN_TEST_COMM_RIG_H

#include "comm_cases.h"

/* Long enough for a loaded machine; only a hang gets that far. */
#define PATIENT_MS 60000

#define N_OF(array) (sizeof(array) / sizeof(array)[0])

union host {
    double *f64;
    float *f32;
    int32_t *i32;
    void *any;
};

struct pair { /* a device buffer and its host image */
    struct kbuf dev;
    union host host;
    size_t bytes;
};

uint32_t hash(uint32_t a, uint32_t b, uint32_t c);
void set_value(union host h, enum kdtype dtype, size_t i, double x);
double input(enum kdtype dtype, int rank, size_t i, int salt);
/* What rank-order addition (or maximum) of the members' inputs gives at element i. */
void set_expected(union host h, enum kdtype dtype, size_t at, size_t i, const struct comm_group *g,
                  int salt, enum comm_op op);
int pair_open(struct rank *r, struct pair *p, enum kdtype dtype, size_t count);
void pair_close(struct rank *r, struct pair *p);
void pair_upload(struct rank *r, struct pair *p);
int pair_compare(struct rank *r, const struct pair *p, const void *expected, const char *what);
struct comm_group everybody(const struct rank *r, int *ranks);
/* Calls `one` for all dtypes and counts. */
int sweep(struct rank *r,
          int (*one)(struct rank *, const struct comm_group *, enum kdtype, size_t));
/* A sum and a maximum, compared with what they must be (comm_cases.c). */
int all_reduce_right(struct rank *r, const struct comm_group *g, enum kdtype dtype, size_t count);

#endif
