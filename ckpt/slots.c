/* slots.c - see slots.h. */
#include "slots.h"

static bool same_generation(const struct ckpt_key *a, const struct ckpt_key *b)
{
    return a->epoch == b->epoch && a->generation == b->generation;
}

bool slots_free(const struct slot_state *slot, const struct ckpt_key *kept,
                const struct ckpt_key *now)
{
    if (slot->pinned)
        return false;
    if (!slot->valid)
        return true;
    int age = kept ? key_compare(&slot->key, kept) : 1;
    return age < 0 || (age > 0 && !same_generation(&slot->key, now));
}

int slots_choose(const struct slot_state *slots, int n, const struct ckpt_key *kept,
                 const struct ckpt_key *now)
{
    int chosen = -1;
    for (int i = 0; i < n; i++) {
        if (!slots_free(&slots[i], kept, now))
            continue;
        if (!slots[i].valid)
            return i;
        if (chosen < 0 || key_compare(&slots[i].key, &slots[chosen].key) < 0)
            chosen = i;
    }
    return chosen;
}
