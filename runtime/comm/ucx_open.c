/* ucx_open.c - opening, configuring, connecting and closing the UCX backend.
 *
 * Configuration is by defaults that give way to the user's: a UCX_* variable that is set is left
 * alone. Ours are for sleeping ranks that must notice a dead peer (see `defaults`), and keep UCX's
 * log out of the program's standard output (see `quiet`). */
#include "comm/ucx.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <ucs/config/global_opts.h>

#include "base/clock.h"

/* An orderly close waits so long for its last messages to arrive, or as long as any message may
 * take if that is less: a peer on a machine with too much to do may not come to them for seconds,
 * and what it has not got when this process ends may be lost. */
#define CLOSE_MS 30000

/* A close after a failure only frees. */
#define FORCED_CLOSE_MS 200

/* UCX ends what a lost endpoint leaves behind in callbacks of its own; a few rounds are enough. */
#define CLEANUP_ROUNDS 32

static const struct {
    const char *key, *value;
} defaults[] = {
    /* Not the transport that reads a peer's memory through the kernel: whether it may depends on
     * ptrace rights, which UCX finds out too late. */
    {"TLS", "^cma"},
    /* Shared memory that takes part in noticing a dead peer; otherwise UCX would take TCP. */
    {"MM_ERROR_HANDLING", "y"},
    /* How often UCX looks whether peers without traffic live. */
    {"KEEPALIVE_INTERVAL", "1s"},
};

static bool user_chose(const char *key)
{
    char name[64];
    snprintf(name, sizeof name, "UCX_%s", key);
    return getenv(name) != NULL;
}

static int set_option(ucp_config_t *config, const char *key, const char *value, struct err *err)
{
    if (user_chose(key))
        return 0;
    ucs_status_t status = ucp_config_modify(config, key, value);
    if (status == UCS_OK)
        return 0;
    return err_set(err, "comm: UCX does not take %s=%s: %s", key, value, ucs_status_string(status));
}

/* Name of the network device that has this IPv4 address. */
static int device_of(const char *address, char name[IF_NAMESIZE], struct err *err)
{
    struct in_addr wanted;
    struct ifaddrs *all;
    if (inet_pton(AF_INET, address, &wanted) != 1)
        return err_set(err, "comm: listen address '%s' is not an IPv4 address", address);
    if (getifaddrs(&all))
        return err_set_errno(err, errno, "comm: network devices");
    name[0] = 0;
    for (struct ifaddrs *i = all; i && !name[0]; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET &&
            ((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr.s_addr == wanted.s_addr)
            snprintf(name, IF_NAMESIZE, "%s", i->ifa_name);
    freeifaddrs(all);
    if (!name[0])
        return err_set(err, "comm: no network device of this host has the address %s", address);
    return 0;
}

static int configure(ucp_config_t *config, const char *listen_address, struct err *err)
{
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++)
        if (set_option(config, defaults[i].key, defaults[i].value, err))
            return -1;
    if (!listen_address || user_chose("NET_DEVICES"))
        return 0;
    char device[IF_NAMESIZE];
    if (device_of(listen_address, device, err))
        return -1;
    return set_option(config, "NET_DEVICES", device, err);
}

/* UCX writes its log to standard output, where it would stand among the program's results. What it
 * says there of a lost peer, comm says in its own errors. UCX has read its variables when it was
 * loaded, so this is by call; it holds for the whole process, as the log does. */
static void quiet(void)
{
    if (!user_chose("LOG_LEVEL"))
        ucs_global_opts_set_value("LOG_LEVEL", "fatal");
}

static int open_context(struct ucx_comm *c, const char *listen_address, struct err *err)
{
    ucp_config_t *config;
    quiet();
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return err_set(err, "comm: UCX configuration: %s", ucs_status_string(status));
    int rv = configure(config, listen_address, err);
    if (!rv) {
        ucp_params_t params = {
            .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
            .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
            .mt_workers_shared = 0,
        };
        status = ucp_init(&params, config, &c->context);
        if (status != UCS_OK)
            rv = err_set(err, "comm: UCX does not start: %s", ucs_status_string(status));
    }
    ucp_config_release(config);
    return rv;
}

static int open_worker(struct ucx_comm *c, size_t *address_bytes, struct err *err)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t status = ucp_worker_create(c->context, &params, &c->worker);
    if (status == UCS_OK)
        status = ucp_worker_get_efd(c->worker, &c->worker_fd);
    if (status == UCS_OK)
        status = ucp_worker_get_address(c->worker, &c->address, address_bytes);
    if (status == UCS_OK)
        return 0;
    return err_set(err, "comm: UCX worker of rank %d: %s", c->base.rank, ucs_status_string(status));
}

static int init_sync(struct ucx_comm *c, struct err *err)
{
    pthread_condattr_t attr;
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->resume, &attr);
    pthread_condattr_destroy(&attr);
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->wake_fd < 0 || c->stop_fd < 0)
        return err_set_errno(err, errno, "comm: eventfd");
    return 0;
}

/* ---- closing ---- */

static void release_ucx(struct ucx_comm *c)
{
    if (c->address)
        ucp_worker_release_address(c->worker, c->address);
    if (c->worker)
        ucp_worker_destroy(c->worker);
    if (c->context)
        ucp_cleanup(c->context);
}

static void release(struct ucx_comm *c)
{
    ucx_free_requests(c); /* a callback may have come until UCX was released */
    for (int r = 0; c->peers && r < c->base.world; r++) {
        free(c->peers[r].address);
        free(c->peers[r].hello);
    }
    free(c->peers);
    if (c->wake_fd >= 0)
        close(c->wake_fd);
    if (c->stop_fd >= 0)
        close(c->stop_fd);
    pthread_cond_destroy(&c->resume);
    pthread_mutex_destroy(&c->lock);
    comm_release(&c->base);
    free(c);
}

static void progress_until(struct ucx_comm *c, void *handle, int64_t deadline_ms)
{
    if (!handle || UCS_PTR_IS_ERR(handle))
        return;
    while (ucp_request_check_status(handle) == UCS_INPROGRESS && clock_left_ms(deadline_ms)) {
        if (ucp_worker_progress(c->worker) || ucp_worker_arm(c->worker) != UCS_OK)
            continue;
        struct pollfd fd = {.fd = c->worker_fd, .events = POLLIN};
        poll(&fd, 1, clock_left_ms(deadline_ms));
    }
    ucp_request_free(handle);
}

static void close_endpoints(struct ucx_comm *c, bool force, int64_t deadline_ms)
{
    void **handles = calloc((size_t)c->base.world, sizeof *handles);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS};
    for (int r = 0; handles && r < c->base.world; r++) {
        param.flags = force || c->peers[r].lost ? UCP_EP_CLOSE_FLAG_FORCE : 0;
        if (c->peers[r].ep)
            handles[r] = ucp_ep_close_nbx(c->peers[r].ep, &param);
    }
    for (int r = 0; handles && r < c->base.world; r++)
        progress_until(c, handles[r], deadline_ms);
    free(handles);
}

/* Before endpoints are closed by force: what UCX has begun with the peers comes to its end, above
 * all a connection that is being made, as UCX 1.13 may abort the process when that is cut short.
 * Not while a send is under way: its owner may have freed what is sent. */
static void settle(struct ucx_comm *c, int64_t deadline_ms)
{
    for (const struct ucx_request *req = c->requests; req; req = req->older)
        if (!req->done)
            return;
    void **handles = calloc((size_t)c->base.world, sizeof *handles);
    ucp_request_param_t param = {.op_attr_mask = 0};
    for (int r = 0; handles && r < c->base.world; r++)
        if (c->peers[r].ep && !c->peers[r].lost)
            handles[r] = ucp_ep_flush_nbx(c->peers[r].ep, &param);
    for (int r = 0; handles && r < c->base.world; r++)
        progress_until(c, handles[r], deadline_ms);
    free(handles);
}

static void tell_failure(struct ucx_comm *c)
{
    struct wire_text text;
    if (c->requests)
        comm_fail(&c->base, NULL, "rank %d has closed with a message under way %s", c->base.rank,
                  wire_describe(&c->requests->base, &text));
    ucx_tell_failure(c);
}

/* A message that is still to come into a buffer of ours, which its owner may have freed by now. It
 * cannot be called back once its sender has been answered, and UCX 1.13 aborts the process when a
 * worker that has one is destroyed. Then worker and context are left as they are, never to be
 * progressed again: a failed rank's process ends, and the system closes its connections. */
static bool receives(const struct ucx_comm *c)
{
    for (const struct ucx_request *req = c->requests; req; req = req->older)
        if (!req->done && !req->base.send)
            return true;
    return false;
}

static void ucx_close(struct comm *base)
{
    struct ucx_comm *c = (struct ucx_comm *)base;
    ucx_thread_stop(c);
    bool orderly = !atomic_load(&base->failed) && !c->requests;
    int64_t patience_ms = base->timeout_ms < CLOSE_MS ? base->timeout_ms : CLOSE_MS;
    int64_t deadline_ms = clock_ms() + (orderly ? patience_ms : FORCED_CLOSE_MS);
    bool leave = false;
    if (c->peers) {
        ucx_cancel_requests(c);
        if (orderly)
            ucx_say_goodbye(c); /* closing flushes it */
        else
            tell_failure(c);
        leave = receives(c);
        if (!leave) {
            if (!orderly)
                settle(c, deadline_ms);
            close_endpoints(c, !orderly, deadline_ms);
            for (int i = 0; i < CLEANUP_ROUNDS; i++)
                ucp_worker_progress(c->worker);
            ucx_drop_messages(c, 0, 0); /* goodbyes, and what nobody asked for */
        }
        ucx_free_handles(c);
    }
    if (!leave)
        release_ucx(c);
    release(c);
}

static const struct transport_ops ucx_ops = {
    .send = ucx_send,
    .recv = ucx_recv,
    .wait = ucx_wait,
    .wake = ucx_wake,
    .close = ucx_close,
};

/* ---- opening ---- */

struct comm *comm_open_ucx(struct kernels *k, int rank, int world, uint32_t generation,
                           const char *listen_address, const void **address, size_t *address_bytes,
                           struct err *err)
{
    if (world > UCX_RANKS) {
        err_set(err, "comm: a world of %d ranks: must be at most %d", world, UCX_RANKS);
        return NULL;
    }
    struct ucx_comm *c = calloc(1, sizeof *c);
    if (!c) {
        err_set_errno(err, ENOMEM, "comm: rank %d", rank);
        return NULL;
    }
    if (comm_init(&c->base, &ucx_ops, k, rank, world, err)) {
        free(c);
        return NULL;
    }
    c->generation = (uint16_t)generation;
    if (init_sync(c, err) || open_context(c, listen_address, err) ||
        open_worker(c, address_bytes, err)) {
        release_ucx(c);
        release(c);
        return NULL;
    }
    *address = c->address;
    c->address_bytes = *address_bytes;
    return &c->base;
}

void comm_set_directory(struct comm *base, const struct comm_directory *directory)
{
    if (base->ops == &ucx_ops)
        ((struct ucx_comm *)base)->directory = *directory;
}

int comm_connect_ucx(struct comm *base, void *const *addresses, const size_t *address_bytes,
                     struct err *err)
{
    struct ucx_comm *c = (struct ucx_comm *)base;
    if (base->ops != &ucx_ops || c->peers)
        return err_set(err, "comm: rank %d is connected already, or not a UCX comm", base->rank);
    struct ucx_peer *peers = calloc((size_t)base->world, sizeof *peers);
    if (!peers)
        return err_set_errno(err, ENOMEM, "comm: %d peers", base->world);
    c->peers = peers;
    for (int r = 0; r < base->world; r++) {
        peers[r].comm = c;
        if (!addresses[r])
            continue;
        peers[r].address_bytes = address_bytes[r];
        peers[r].address = malloc(address_bytes[r] + 1);
        if (!peers[r].address)
            return err_set_errno(err, ENOMEM, "comm: address of rank %d", r);
        memcpy(peers[r].address, addresses[r], address_bytes[r]);
    }
    return ucx_thread_start(c, err);
}
