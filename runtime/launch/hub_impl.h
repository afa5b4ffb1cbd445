/* hub_impl.h - between hub.c (the coordinator's side, and the whole) and hub_tasks.c. */
#ifndef GTRAIN_LAUNCH_HUB_IMPL_H
#define GTRAIN_LAUNCH_HUB_IMPL_H

#include "launch/hub.h"

enum hub_state { HUB_GATHERING, HUB_CONNECTING, HUB_PROVING, HUB_REGISTERED, HUB_ENDED };

struct hub_task {
    struct watch watch; /* first: the loop hands back a pointer to it */
    struct hub *hub;
    struct wire wire;
    int local_id; /* -1 until it has joined */
    int present;  /* its connection is there */
    int opened, done;
    uint32_t turn;               /* of the exchange it waits for */
    struct wire_frame *exchange; /* sent and not answered yet, or NULL */
    struct wire_frame *address;  /* that it has published, or NULL */
    struct wire_frame *ask;      /* not answered yet, or NULL */
    struct wire_frame *exited;   /* its worker's end, or NULL */
};

struct hub {
    const struct agent_env *env;
    int epoll;
    enum hub_state state;

    struct hub_listener {
        struct watch watch;
        struct hub *hub;
        int fd;
    } listener;
    struct hub_task **tasks; /* by local id; NULL until joined */
    struct hub_task *all;    /* room for all that may ever connect */
    int n_all, room_all, joined;

    struct hub_up {
        struct watch watch;
        struct hub *hub;
    } up;
    struct wire wire; /* to the coordinator; fd -1: none */
    int attempt;      /* which address is tried */
    int64_t attempt_at, give_up_at, heard;
    unsigned char nonce[AUTH_BYTES], theirs[AUTH_BYTES];

    int reserved; /* a socket that keeps MASTER_PORT free until ranks are given out; -1 */
    struct message_assign assigned;
    int has_assigned;
    int orphaned;
};

/* ---- hub.c ---- */

/* Queue a frame to the coordinator, if it is there. */
void hub_send_up(struct hub *h, struct wire_frame *f);
/* The end, by our own judgement: the coordinator is gone, or refused us. */
void hub_end_here(struct hub *h, const char *text);
/* All tasks have joined: find the coordinator. */
void hub_start(struct hub *h, int64_t now);
/* Has the node ranks that run? */
int hub_running(const struct hub *h);

/* ---- hub_tasks.c ---- */

void hub_send_down(struct hub *h, struct hub_task *t, struct wire_frame *f);
void hub_send_down_all(struct hub *h, struct wire_frame *f);
struct message_rank hub_rank_of(const struct hub *h, const struct hub_task *t);
/* What the tasks have said is of the generation before. */
void hub_forget(struct hub *h);
/* Report tasks that have gone while the node was a spare, or between two generations. */
void hub_check_tasks(struct hub *h);
int hub_add_task(struct hub *h, int fd);
void hub_handle_listener(struct watch *w, uint32_t events);

#endif
