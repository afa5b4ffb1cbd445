/* ucx_peers.c - endpoints, and what ranks tell each other about themselves.
 *
 * UCX calls on_peer_error for an endpoint whose peer it has lost. Receives that wait for that peer
 * stay pending in UCX for ever, so every wait looks here. To find out early, and to tell a death
 * from an orderly end, ranks send control messages, with tags of their own:
 *   hello     to a peer when an endpoint to it is made, be it only to receive: it makes one, too.
 *             It carries the sender's address, which the peer need not know
 *   goodbye   before an orderly close, behind all other messages: the end is then an error only for
 *             who still wants something of that rank
 *   gave up   when a comm has failed, with the reason, which all others fail with */
#include "comm/ucx.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* How often messages of other generations are looked for: they only cost memory. */
#define SWEEP_MS 1000

/* Longest address taken from a hello. */
#define HELLO_MAX_BYTES 65536

uint64_t ucx_tag(const struct ucx_comm *c, int sender, uint32_t tag)
{
    return (uint64_t)sender << UCX_RANK_SHIFT | (uint64_t)c->generation << UCX_GENERATION_SHIFT |
           tag;
}

/* ---- lost peers ---- */

static void on_peer_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    struct ucx_peer *peer = arg;
    peer->lost = true;
    peer->status = status;
    peer->comm->lost_some = true;
}

bool ucx_said_goodbye(struct ucx_comm *c, int peer)
{
    struct ucx_peer *p = &c->peers[peer];
    uint64_t tag = ucx_tag(c, peer, wire_tag(WIRE_CONTROL, CONTROL_GOODBYE));
    ucp_tag_recv_info_t info;
    if (!p->closed)
        p->closed = ucp_tag_probe_nb(c->worker, tag, UINT64_MAX, 0, &info) != NULL;
    return p->closed;
}

int ucx_check_lost(struct ucx_comm *c, struct err *err)
{
    if (!c->lost_some)
        return 0;
    if (ucx_read_control(c, err)) /* a reason is better than a broken connection */
        return -1;
    c->lost_some = false;
    for (int r = 0; r < c->base.world; r++)
        if (c->peers[r].lost && !ucx_said_goodbye(c, r))
            return comm_fail(&c->base, err, "rank %d: lost rank %d: %s", c->base.rank, r,
                             ucs_status_string(c->peers[r].status));
    return 0;
}

/* ---- endpoints and control messages ---- */

/* What cannot go at once goes when it can, or never: nobody waits for it. */
static void send_control(struct ucx_comm *c, int peer, uint32_t what, const void *text,
                         size_t bytes)
{
    ucp_request_param_t param = {.op_attr_mask = 0};
    uint64_t tag = ucx_tag(c, c->base.rank, wire_tag(WIRE_CONTROL, what));
    void *handle = ucp_tag_send_nbx(c->peers[peer].ep, text, bytes, tag, &param);
    if (handle && !UCS_PTR_IS_ERR(handle))
        ucp_request_free(handle);
}

static int connect_peer(struct ucx_comm *c, int peer, struct err *err)
{
    struct ucx_peer *p = &c->peers[peer];
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = p->address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_peer_error, .arg = p},
    };
    ucs_status_t status = ucp_ep_create(c->worker, &params, &p->ep);
    if (status != UCS_OK)
        return comm_fail(&c->base, err, "rank %d: cannot connect to rank %d: %s", c->base.rank,
                         peer, ucs_status_string(status));
    if (peer != c->base.rank)
        send_control(c, peer, CONTROL_HELLO, c->address, c->address_bytes);
    return 0;
}

/* Only from here, which is the owner's thread: the directory is its to use. */
static int find_address(struct ucx_comm *c, int peer, struct err *err)
{
    struct ucx_peer *p = &c->peers[peer];
    void *address = NULL;
    struct err why = {"nobody has told it"};
    if (!c->directory.find ||
        c->directory.find(c->directory.arg, peer, &address, &p->address_bytes, &why))
        return comm_fail(&c->base, err, "rank %d: no address of rank %d: %s", c->base.rank, peer,
                         why.text);
    p->address = address;
    return 0;
}

/* What a closed peer sent before may still be received, without an endpoint. */
int ucx_endpoint(struct ucx_comm *c, int peer, bool send, struct err *err)
{
    if (!c->peers)
        return err_set(err, "comm: rank %d is not connected yet", c->base.rank);
    struct ucx_peer *p = &c->peers[peer];
    if (!p->ep && !p->closed)
        ucx_said_goodbye(c, peer);
    if (p->closed && send)
        return comm_fail(&c->base, err, "rank %d: no message to rank %d: that rank has closed",
                         c->base.rank, peer);
    if (p->closed || p->ep)
        return 0;
    if (ucx_read_control(c, err)) /* it may have said hello */
        return -1;
    if (!p->ep && !p->address && find_address(c, peer, err))
        return -1;
    return p->ep ? 0 : connect_peer(c, peer, err);
}

/* A peer gave up: fail with its reason. Its message is short, so it is in `why` when UCX returns.
 */
static int fail_with(struct ucx_comm *c, ucp_tag_message_h message, struct err *err)
{
    struct err why = {""};
    ucp_request_param_t param = {.op_attr_mask = 0};
    void *handle = ucp_tag_msg_recv_nbx(c->worker, why.text, sizeof why.text - 1, message, &param);
    if (handle && !UCS_PTR_IS_ERR(handle))
        ucp_request_free(handle);
    return comm_fail(&c->base, err, "%s", why.text);
}

/* A hello is short, so that it is there when UCX returns; of one that is not, UCX keeps the memory
 * until close, and who needs the address asks for it. */
static void take_hello(struct ucx_comm *c, ucp_tag_message_h message, int peer, size_t bytes)
{
    struct ucx_peer *p = &c->peers[peer];
    ucp_request_param_t param = {.op_attr_mask = 0};
    void *room = NULL;
    if (!p->hello && bytes && bytes <= HELLO_MAX_BYTES)
        room = p->hello = malloc(bytes);
    void *handle = ucp_tag_msg_recv_nbx(c->worker, room, room ? bytes : 0, message, &param);
    bool request = handle && !UCS_PTR_IS_ERR(handle);
    bool whole = !handle || (request && ucp_request_check_status(handle) == UCS_OK);
    if (request)
        ucp_request_free(handle);
    if (!whole || !room || p->address)
        return;
    p->address = p->hello;
    p->address_bytes = bytes;
    p->hello = NULL;
}

static int answer_hello(struct ucx_comm *c, ucp_tag_message_h message, int peer, size_t bytes,
                        struct err *err)
{
    bool ours = peer < c->base.world;
    take_hello(c, message, ours ? peer : c->base.rank, ours ? bytes : 0);
    if (!ours)
        return 0;
    struct ucx_peer *p = &c->peers[peer];
    return p->ep || !p->address || ucx_said_goodbye(c, peer) ? 0 : connect_peer(c, peer, err);
}

/* Takes one control message of this kind, from whatever rank. */
static ucp_tag_message_h take_control(struct ucx_comm *c, uint32_t what, int *peer, size_t *bytes)
{
    uint64_t any_rank = (UINT64_C(1) << UCX_RANK_SHIFT) - 1;
    ucp_tag_recv_info_t info;
    ucp_tag_message_h message = ucp_tag_probe_nb(
        c->worker, ucx_tag(c, 0, wire_tag(WIRE_CONTROL, what)), any_rank, 1, &info);
    if (message) {
        *peer = (int)(info.sender_tag >> UCX_RANK_SHIFT);
        *bytes = info.length;
    }
    return message;
}

/* Failures first: an endpoint to a rank that has given up is not worth trying. */
int ucx_read_control(struct ucx_comm *c, struct err *err)
{
    int peer;
    size_t bytes;
    ucp_tag_message_h message = take_control(c, CONTROL_GAVE_UP, &peer, &bytes);
    if (message)
        return fail_with(c, message, err);
    while ((message = take_control(c, CONTROL_HELLO, &peer, &bytes)))
        if (answer_hello(c, message, peer, bytes, err))
            return -1;
    return 0;
}

/* To all who have an endpoint to this rank. */
static void tell_all(struct ucx_comm *c, uint32_t what, const char *text)
{
    ucx_read_control(c, NULL);
    for (int r = 0; r < c->base.world; r++) {
        struct ucx_peer *p = &c->peers[r];
        if (p->ep && !p->lost && !p->closed && r != c->base.rank)
            send_control(c, r, what, text, strlen(text));
    }
}

void ucx_tell_failure(struct ucx_comm *c)
{
    if (!c->told && c->peers)
        tell_all(c, CONTROL_GAVE_UP, c->base.why.text);
    c->told = true;
}

void ucx_say_goodbye(struct ucx_comm *c)
{
    tell_all(c, CONTROL_GOODBYE, "");
}

/* ---- messages that nobody wants ---- */

static void on_dropped(void *handle, ucs_status_t status, const ucp_tag_recv_info_t *info,
                       void *arg)
{
    (void)status;
    (void)info;
    (void)arg;
    ucp_request_free(handle);
}

/* They are received into nothing, and UCX cuts them off. */
void ucx_drop_messages(struct ucx_comm *c, uint64_t tag, uint64_t mask)
{
    ucp_tag_recv_info_t info;
    ucp_tag_message_h message;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv = on_dropped,
    };
    while ((message = ucp_tag_probe_nb(c->worker, tag, mask, 1, &info)))
        ucp_tag_msg_recv_nbx(c->worker, NULL, 0, message, &param);
}

/* Messages of other generations. A generation other than ours differs from it in some bit. */
void ucx_drop_old(struct ucx_comm *c)
{
    int64_t now_ms = clock_ms();
    if (now_ms - c->swept_ms < SWEEP_MS)
        return;
    c->swept_ms = now_ms;
    for (int bit = 0; bit < UCX_GENERATION_BITS; bit++)
        ucx_drop_messages(c, ~ucx_tag(c, 0, 0), UINT64_C(1) << (UCX_GENERATION_SHIFT + bit));
}
