/* auth.h - the step's secret: both ends prove that they know it, and it never travels.
 *
 * The coordinator sends a nonce; the node answers with its own nonce and
 * HMAC-SHA256(secret, "node" + both nonces); the coordinator proves itself with
 * HMAC-SHA256(secret, "coordinator" + both nonces). The words in front keep one side's proof from
 * being played back as the other's. */
#ifndef GTRAIN_LAUNCH_AUTH_H
#define GTRAIN_LAUNCH_AUTH_H

#include "base/err.h"

enum { AUTH_BYTES = 32, AUTH_HEX_BYTES = 2 * AUTH_BYTES + 1 };

struct auth_secret {
    unsigned char bytes[AUTH_BYTES];
};

int auth_random(unsigned char out[AUTH_BYTES], struct err *err);
void auth_hex(const unsigned char in[AUTH_BYTES], char out[AUTH_HEX_BYTES]);
int auth_unhex(const char *text, unsigned char out[AUTH_BYTES], struct err *err);

/* role: "node", "coordinator", or another name of a use. -1 if the library fails. */
int auth_proof(const struct auth_secret *secret, const char *role,
               const unsigned char ours[AUTH_BYTES], const unsigned char theirs[AUTH_BYTES],
               unsigned char out[AUTH_BYTES], struct err *err);

/* 1 if equal, in a time that does not depend on where they differ. */
int auth_equal(const unsigned char a[AUTH_BYTES], const unsigned char b[AUTH_BYTES]);

#endif
