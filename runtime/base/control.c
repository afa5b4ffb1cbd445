#include "base/control.h"

/* C2 80 to C2 9F. */
static bool is_c1(unsigned char first, unsigned char second)
{
    return first == 0xC2 && second >= 0x80 && second < 0xA0;
}

bool text_is_control(const char *text, size_t at)
{
    const unsigned char *s = (const unsigned char *)text + at;
    return *s < ' ' || *s == 127 || is_c1(s[0], s[1]) || (at > 0 && is_c1(s[-1], s[0]));
}
