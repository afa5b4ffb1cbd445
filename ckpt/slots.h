/* slots.h - which memory slot the next snapshot may overwrite. Pure.
 *
 * A rank, and its partner for it, has a few slots, each with one step's state. The rule keeps one
 * state that everybody can go back to: a slot is needed while nothing newer is known to be whole
 * everywhere, that is on every rank and with every rank's partner. Who fills a slot must therefore
 * know `kept`: the newest state of which all have confirmed just that, or the one that the run was
 * restored from.
 *
 * Two slots are enough where a state is confirmed before the next one is made (train/mirror.h: all
 * ranks join their copies before the sum that the next update needs). Where the confirmation comes
 * a step late it takes three; with two there would be no slot to fill, and more than one step
 * to do again. */
#ifndef GTRAIN_CKPT_SLOTS_H
#define GTRAIN_CKPT_SLOTS_H

#include "names.h"

struct slot_state {
    bool valid, pinned; /* pinned: somebody is reading it */
    struct ckpt_key key;
};

/* May this slot be overwritten by who is at work in generation `now` (its step does not matter)?
 * What is newer than kept and of another generation is a branch that the run has left. */
bool slots_free(const struct slot_state *slot, const struct ckpt_key *kept,
                const struct ckpt_key *now);

/* The one to overwrite: one with nothing in it, else the oldest. -1: none may be. kept: NULL as
 * long as nothing is confirmed. */
int slots_choose(const struct slot_state *slots, int n, const struct ckpt_key *kept,
                 const struct ckpt_key *now);

#endif
