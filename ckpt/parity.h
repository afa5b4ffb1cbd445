/* parity.h - parity of a group of ranks' files, so that a file can be had again without a copy.
 *
 * A group has `members` ranks on as many nodes. It survives the loss of any `keeps` of them: their
 * files, nodes, or single files that turn out to be damaged. xor:N is a group of N that keeps 1,
 * rs:P+K one of P + K that keeps K.
 *
 * Each file is cut into P = members - keeps segments of one length, zeros behind its end. There are
 * as many stripes as members; to each stripe every member gives one element: a segment of its file,
 * or one of the parities of the others' segments in that stripe. Which is which turns from stripe
 * to stripe, so all carry the same load: besides its own file each keeps `keeps` segments of
 * parity, keeps / P of a file. Any P elements of a stripe give the other ones (the code is a
 * systematic one over GF(2^8): a Cauchy matrix, which unlike a Vandermonde one can always be
 * inverted; a single parity is the plain sum, XOR).
 *
 * Example, 4 members that keep 1 (d2.0: the file of member 2, segment 0; p: parity of the stripe):
 *
 *              stripe 0   stripe 1   stripe 2   stripe 3
 *   member 0   p          d0.2       d0.1       d0.0
 *   member 1   d1.0       p          d1.2       d1.1
 *   member 2   d2.1       d2.0       p          d2.2
 *   member 3   d3.2       d3.1       d3.0       p
 *
 * Of large files the header counts as filled up with zeros to a whole MiB, and segments have whole
 * MiB: so a chunk is a block of the file's checksums. (A file's first eight bytes tell how long its
 * header is.)
 *
 * Work goes in chunks: chunk c of a segment is its bytes from c * PARITY_CHUNK on. Parity is made
 * while the files are written, and a file's header, which has the checksums of all that, is there
 * when the file is durable (image.h). So the chunks that may hold a header come last, and who gives
 * them only then has said with them that its file is durable: parities are never complete, and
 * never have their name, where a file that they cover is not.
 *
 * A member's
 * parity is a file of its own, RUN.e1.g2.s300.p4.safetensors, made under the rules of the others (a
 * temporary name, checksums, fsync, rename). It holds, as tensor gtrain.parity, chunk 0 of its
 * parities one after the other, then chunk 1 of them, and so on. Functions return 0, or -1 with err
 * set. */
#ifndef GTRAIN_CKPT_PARITY_H
#define GTRAIN_CKPT_PARITY_H

#include "ckpt.h"
#include "image.h"
#include "names.h"
#include "sys.h"

enum {
    PARITY_CHUNK = 1 << 20, /* as a block of checksums: bounds the memory, and a message */
    PARITY_KEEPS_MAX = 16,
    PARITY_MEMBERS_MAX = 128, /* a group may be nearly twice what the plan asks for */
};

/* ---- the code. Pure. ---- */

struct parity_code {
    int members, keeps;
    int64_t grain;   /* 4096, of large files 1 MiB: headers and segments are multiples of it */
    int64_t segment; /* bytes */
    int64_t chunks;  /* of a segment */
};

/* longest: bytes of the longest file of the group. */
int parity_code_make(struct parity_code *out, int members, int keeps, int64_t longest,
                     struct err *err);
int parity_data(const struct parity_code *code); /* P */
/* Where the data of a file begins among the bytes that are cut into segments. */
int64_t parity_data_at(const struct parity_code *code, int64_t header_bytes);
int64_t parity_chunk_bytes(const struct parity_code *code, int64_t chunk);

/* How many chunks, from the first on, may hold a part of a header of so many bytes. */
int64_t parity_late(const struct parity_code *code, int64_t header_bytes);
/* Which chunk is the one in place `turn`, from 0, where so many come late. */
int64_t parity_chunk(const struct parity_code *code, int64_t late, int64_t turn);

/* What a member gives to a stripe: below P the segment of that number, else P + which parity. */
int parity_element(const struct parity_code *code, int member, int stripe);
/* The stripe in which a member gives that element. */
int parity_stripe(const struct parity_code *code, int member, int element);

/* Can every member's file be had, from those that are there? files, parities: by
 * member. */
bool parity_suffices(const struct parity_code *code, const bool *files, const bool *parities);

/* What a segment counts in an element: how much of it is in the sum that the element is. */
unsigned char parity_weight(const struct parity_code *code, int element, int segment);

/* How to compute one element of a stripe out of P others: factor[i] for elements[i]. False where
 * elements are not P different ones that are in the code. */
bool parity_factors(const struct parity_code *code, int wanted, const int *elements,
                    unsigned char *factor);

/* sum[0..n) += factor * from[0..n), in GF(2^8). */
void parity_add(unsigned char factor, const void *from, void *sum, size_t n);

/* ---- the file of parities ---- */

struct ckpt_parity;

struct ckpt_parity_options {
    const char *dir, *run_id; /* as in ckpt_options: this node's folder */
    int rank, world;
    uint32_t epoch, generation;
    uint64_t plan_hash;
    int members, keeps, member;
    const int64_t *file_bytes;    /* of each member's files */
    int64_t header_bytes;         /* of the longest header among them */
    const struct ckpt_hook *hook; /* may be NULL */
};

/* Bytes of such a file; 0 with err: it cannot be. */
int64_t ckpt_parity_bytes(const struct ckpt_parity_options *options, struct err *err);

/* A thread writes. One a rank. One thread may begin, add and go on to the next, while another asks
 * what is finished, waits and claims. */
int ckpt_parity_open(struct ckpt_parity **out, const struct ckpt_parity_options *options,
                     struct err *err);
const struct parity_code *ckpt_parity_code(const struct ckpt_parity *p);
int64_t ckpt_parity_late(const struct ckpt_parity *p);

/* The parities of the members' files of a step come next, from the first chunk that is not late. */
int ckpt_parity_begin(struct ckpt_parity *p, const struct ckpt_position *position, struct err *err);

/* What this member's parities need of another's file: for each parity in turn (`which` from 0) the
 * segment, -1: none. The same from both sides: holder computes, source gives. Pure. */
int parity_wants(const struct parity_code *code, int holder, int which, int source);

/* The current chunk of those segments of another member's file, one after the other. */
int ckpt_parity_add(struct ckpt_parity *p, int source, const void *chunks, size_t bytes,
                    struct err *err);

/* All members but this one have given theirs: on to the next chunk, as parity_chunk has them. Waits
 * while the disk is several behind. After the last the file is finished in the background. */
int ckpt_parity_next(struct ckpt_parity *p, struct err *err);

/* The newest step whose parities are complete and durable, -1 if none. A failed write is an error,
 * here, once; nothing is written after it. Never blocks. */
int ckpt_parity_finished(struct ckpt_parity *p, int64_t *step, struct err *err);

/* Until all that was given is written, or failed, or the deadline (a clock_ms() point). */
int ckpt_parity_wait(struct ckpt_parity *p, int64_t deadline_ms, struct err *err);

/* A claim (ckpt_claim) with what this rank's parities are: group names the group, the same for all
 * its members and no other's. malloc'ed; NULL: err. */
char *ckpt_parity_claim(struct ckpt_parity *p, int64_t step, int group, const char *claim,
                        struct err *err);

/* A half is unlinked. */
void ckpt_parity_close(struct ckpt_parity *p);

/* ---- reading elements, each byte checked ---- */

/* A member's file, or the file of its parities. */
struct parity_source;
int parity_source_open(struct parity_source **out, const struct ckpt_place *place,
                       const struct parity_code *code, int member, bool parities, struct err *err);
/* Chunk c of an element into `to` (room for PARITY_CHUNK), zeros behind a file's end. */
int parity_source_read(struct parity_source *s, int element, int64_t chunk, void *to,
                       struct err *err);
void parity_source_close(struct parity_source *s);

/* The same of a file that is being written. */
struct parity_image;
int parity_image_open(struct parity_image **out, const struct ckpt_image *image,
                      const struct parity_code *code, int64_t late, struct err *err);
/* The file is durable, and this its digest: what was read before is what stands in it, and late
 * chunks may be read. */
int parity_image_seal(struct parity_image *s, uint32_t digest, struct err *err);
/* *crc: of the chunk. */
int parity_image_read(struct parity_image *s, int segment, int64_t chunk, void *to, uint32_t *crc,
                      struct err *err);
void parity_image_close(struct parity_image *s);

/* ---- restore ---- */

/* As ckpt_decide, but a set is whole also if what is missing can be rebuilt: out->lost counts such
 * files, whose places have no node. */
int ckpt_decide_rebuilt(const char *const *blobs, int n, int64_t max_step,
                        struct ckpt_decision *out, struct err *err);
/* As ckpt_decide_named. */
int ckpt_decide_rebuilt_named(const char *const *blobs, int n, int64_t step,
                              struct ckpt_decision *out, struct err *err);

/* The group of a rank of a decision. */
struct parity_group {
    struct parity_code code;
    int ranks[PARITY_MEMBERS_MAX];
    int member; /* which of them it is */
};
int parity_group_of(const struct ckpt_decision *d, int rank, struct parity_group *out,
                    struct err *err);

/* P elements of a stripe that are there, for the decision. False: too few. Pure. */
bool parity_choose(const struct ckpt_decision *d, const struct parity_group *g, int stripe,
                   int *elements, int *members);

/* Puts a lost file together, segment by segment, chunk by chunk. */
struct parity_rebuild;
int parity_rebuild_open(struct parity_rebuild **out, const char *dir, const char *run_id,
                        const struct ckpt_decision *d, int rank, const struct ckpt_hook *hook,
                        struct err *err);
/* Chunk `chunk` of segment `segment`. */
int parity_rebuild_put(struct parity_rebuild *r, int segment, int64_t chunk, const void *bytes,
                       struct err *err);
/* All is there: is it the file, by its checksums and the record's digest? */
int parity_rebuild_check(struct parity_rebuild *r, struct err *err);
/* After that: durable, and under its name. */
int parity_rebuild_finish(struct parity_rebuild *r, struct err *err);
/* What that is; malloc'ed. */
char *parity_rebuild_path(const char *dir, const char *run_id, const struct ckpt_decision *d,
                          int rank, struct err *err);
void parity_rebuild_close(struct parity_rebuild *r);

/* The scan (ckpt_scan) of a node with a file in it that is damaged (no decision takes it), or, the
 * other way, there. blob is freed; NULL: no memory. */
char *ckpt_scan_mark(char *blob, const char *name, int64_t bytes, bool damaged);

#endif
