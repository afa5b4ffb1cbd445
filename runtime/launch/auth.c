#include "launch/auth.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

int auth_random(unsigned char out[AUTH_BYTES], struct err *err)
{
    if (getrandom(out, AUTH_BYTES, 0) != AUTH_BYTES)
        return err_set_errno(err, errno, "no random bytes from the kernel");
    return 0;
}

void auth_hex(const unsigned char in[AUTH_BYTES], char out[AUTH_HEX_BYTES])
{
    for (int i = 0; i < AUTH_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", in[i]);
}

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

int auth_unhex(const char *text, unsigned char out[AUTH_BYTES], struct err *err)
{
    if (strlen(text) != AUTH_HEX_BYTES - 1)
        return err_set(err, "a secret of %zu digits, not %d", strlen(text), AUTH_HEX_BYTES - 1);
    for (int i = 0; i < AUTH_BYTES; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return err_set(err, "a secret that is not lower-case hex digits");
        out[i] = (unsigned char)(high << 4 | low);
    }
    return 0;
}

int auth_proof(const struct auth_secret *secret, const char *role,
               const unsigned char ours[AUTH_BYTES], const unsigned char theirs[AUTH_BYTES],
               unsigned char out[AUTH_BYTES], struct err *err)
{
    unsigned char text[32 + 2 * AUTH_BYTES] = {0};
    size_t n = strlen(role);
    if (n > 32)
        return err_set(err, "a role of %zu bytes, longer than 32", n);
    /* A fixed place for the role: no two (role, nonces) give the same text. */
    memcpy(text, role, n);
    memcpy(text + 32, ours, AUTH_BYTES);
    memcpy(text + 32 + AUTH_BYTES, theirs, AUTH_BYTES);
    unsigned bytes = 0;
    if (!HMAC(EVP_sha256(), secret->bytes, AUTH_BYTES, text, sizeof text, out, &bytes) ||
        bytes != AUTH_BYTES)
        return err_set(err, "libcrypto cannot compute an HMAC-SHA256");
    return 0;
}

int auth_equal(const unsigned char a[AUTH_BYTES], const unsigned char b[AUTH_BYTES])
{
    return CRYPTO_memcmp(a, b, AUTH_BYTES) == 0;
}
