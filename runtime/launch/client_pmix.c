/* client_pmix.c - started by srun --mpi=pmix, mpirun or prterun: initialise, put, fence, get,
 * finalise, all before training starts. Slurm's PMIx server kills the whole step if a connected
 * client dies, so the connection lives no longer than the one exchange it is for. */
#include "launch/client_kinds.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <stdlib.h>

int client_pmix_here(void)
{
    return getenv("PMIX_NAMESPACE") && getenv("PMIX_RANK");
}

#ifdef HAVE_PMIX

#include <pmix.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define KEY "gtrain.blob"

static int failed(struct err *err, const char *what, pmix_status_t status)
{
    return err_set(err, "PMIx: %s: %s", what, PMIx_Error_string(status));
}

/* A number about a process or the job. */
static int get_number(const pmix_proc_t *proc, const char *key, int *out)
{
    pmix_value_t *value = NULL;
    if (PMIx_Get(proc, key, NULL, 0, &value) != PMIX_SUCCESS || !value)
        return -1;
    int good = 1;
    switch (value->type) {
    case PMIX_UINT32:
        *out = (int)value->data.uint32;
        break;
    case PMIX_UINT16:
        *out = value->data.uint16;
        break;
    case PMIX_INT:
        *out = value->data.integer;
        break;
    case PMIX_PROC_RANK:
        *out = (int)value->data.rank;
        break;
    default:
        good = 0;
    }
    PMIX_VALUE_RELEASE(value);
    return good ? 0 : -1;
}

int client_pmix_open(struct launch *l, struct launch_identity *id, struct err *err)
{
    pmix_proc_t me, job;
    pmix_status_t status = PMIx_Init(&me, NULL, 0);
    if (status != PMIX_SUCCESS)
        return failed(err, "cannot reach the server that started us", status);
    l->kind = LAUNCH_PMIX;
    l->pmix_open = 1;
    snprintf(l->pmix_space, sizeof l->pmix_space, "%s", me.nspace);
    job = me;
    job.rank = PMIX_RANK_WILDCARD;
    *id = (struct launch_identity){.kind = LAUNCH_PMIX, .rank = (int)me.rank, .generation = 1};
    gethostname(id->node, sizeof id->node - 1);
    if (get_number(&job, PMIX_JOB_SIZE, &id->world) || id->world < 1 || id->rank >= id->world)
        return err_set(err, "PMIx: the server does not say how many ranks there are");
    if (get_number(&me, PMIX_LOCAL_RANK, &id->local_rank) ||
        get_number(&job, PMIX_LOCAL_SIZE, &id->local_world)) {
        id->local_rank = 0;
        id->local_world = 1;
    }
    if (get_number(&me, PMIX_NODEID, &id->node_rank))
        id->node_rank = 0;
    l->rank = id->rank;
    l->world = id->world;
    return 0;
}

static int put_mine(const void *mine, size_t bytes, struct err *err)
{
    pmix_value_t value;
    PMIX_VALUE_CONSTRUCT(&value);
    value.type = PMIX_BYTE_OBJECT;
    value.data.bo.bytes = (char *)mine;
    value.data.bo.size = bytes;
    pmix_status_t status = PMIx_Put(PMIX_GLOBAL, KEY, &value);
    if (status == PMIX_SUCCESS)
        status = PMIx_Commit();
    return status == PMIX_SUCCESS ? 0 : failed(err, "cannot give our blob", status);
}

static int fence(int64_t deadline_ms, struct err *err)
{
    pmix_info_t info[2];
    bool collect = true;
    int seconds = clock_left_ms(deadline_ms) / 1000 + 1;
    PMIX_INFO_LOAD(&info[0], PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
    PMIX_INFO_LOAD(&info[1], PMIX_TIMEOUT, &seconds, PMIX_INT);
    pmix_status_t status = PMIx_Fence(NULL, 0, info, 2);
    PMIX_INFO_DESTRUCT(&info[0]);
    PMIX_INFO_DESTRUCT(&info[1]);
    return status == PMIX_SUCCESS ? 0 : failed(err, "not all ranks came to the exchange", status);
}

static int get_one(struct launch *l, int rank, void **out, size_t *length, struct err *err)
{
    pmix_proc_t proc;
    pmix_value_t *value = NULL;
    PMIX_PROC_LOAD(&proc, l->pmix_space, (pmix_rank_t)rank);
    pmix_status_t status = PMIx_Get(&proc, KEY, NULL, 0, &value);
    if (status != PMIX_SUCCESS || !value)
        return failed(err, "a rank's blob is missing", status);
    int good = value->type == PMIX_BYTE_OBJECT && (*out = malloc(value->data.bo.size + 1));
    if (good) {
        *length = value->data.bo.size;
        if (*length)
            memcpy(*out, value->data.bo.bytes, *length);
        ((char *)*out)[*length] = 0;
    }
    PMIX_VALUE_RELEASE(value);
    return good ? 0 : err_set(err, "PMIx: the blob of rank %d makes no sense", rank);
}

int client_pmix_exchange(struct launch *l, const void *mine, size_t bytes, void **all,
                         size_t *lengths, int64_t deadline_ms, struct err *err)
{
    if (!l->pmix_open)
        return err_set(err, "PMIx: there is one exchange a launch, and it has been");
    int got = 0;
    int bad = put_mine(mine, bytes, err) || fence(deadline_ms, err);
    while (!bad && got < l->world && !(bad = get_one(l, got, &all[got], &lengths[got], err)))
        got++;
    client_pmix_close(l);
    for (int i = 0; bad && i < got; i++)
        free(all[i]);
    return bad ? -1 : 0;
}

void client_pmix_close(struct launch *l)
{
    if (l->pmix_open)
        PMIx_Finalize(NULL, 0);
    l->pmix_open = 0;
}

#else /* !HAVE_PMIX */

int client_pmix_open(struct launch *l, struct launch_identity *id, struct err *err)
{
    (void)l;
    (void)id;
    return err_set(err, "a PMIx server started us, but gtrain was built without PMIx: install "
                        "libpmix-dev and build it anew");
}

int client_pmix_exchange(struct launch *l, const void *mine, size_t bytes, void **all,
                         size_t *lengths, int64_t deadline_ms, struct err *err)
{
    (void)l, (void)mine, (void)bytes, (void)all, (void)lengths, (void)deadline_ms;
    return err_set(err, "gtrain was built without PMIx");
}

void client_pmix_close(struct launch *l)
{
    (void)l;
}

#endif
