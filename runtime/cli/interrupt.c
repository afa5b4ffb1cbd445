/* interrupt.c - see interrupt.h. Signals belong to the process, hence the variables of the file. */
#include "cli/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ};

enum { CAUGHT = sizeof caught / sizeof *caught };

static atomic_bool stop;
static volatile sig_atomic_t came;
static struct sigaction before[CAUGHT];

static void on_signal(int number)
{
    came = number;
    atomic_store(&stop, true);
}

const atomic_bool *interrupt_catch(void)
{
    /* No SA_RESTART: a call that waits, as for a reader of our output, is to end too. */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < CAUGHT; i++)
        if (!sigaction(caught[i], NULL, &before[i]) && before[i].sa_handler != SIG_IGN)
            sigaction(caught[i], caught[i] == SIGXFSZ ? &ignore : &action, NULL);
    return &stop;
}

bool interrupt_may_print(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    sigset_t set, old;
    sigemptyset(&set);
    for (int i = 0; i < CAUGHT; i++)
        sigaddset(&set, caught[i]);
    sigprocmask(SIG_BLOCK, &set, &old);
    if (!atomic_load(&stop))
        ppoll(&out, 1, NULL, &old); /* until there is room, or a signal */
    sigprocmask(SIG_SETMASK, &old, NULL);
    return !atomic_load(&stop);
}

void interrupt_release(bool done)
{
    for (int i = 0; i < CAUGHT; i++)
        sigaction(caught[i], &before[i], NULL);
    if (!came || done)
        return;
    fflush(stderr);
    signal(came, SIG_DFL); /* a library that only looks in may have put itself there before us */
    raise(came);
}
