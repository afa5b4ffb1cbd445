/* mesh.c - coordinates of a rank, and the groups it is in.
 *
 * A rank is a number in a mixed radix whose digits are its coordinates, the tensor axis the lowest.
 * The group along an axis is every rank that differs in that digit only; it comes out ascending
 * because the digit is counted up. */
#include "comm/mesh.h"

#include "comm/transport.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char *const axis_name[MESH_AXES] = {"tensor", "context", "expert", "pipeline", "data"};

/* Ids of the groups: the axis for those along an axis, then these. Groups of one id on different
 * ranks are disjoint or equal, so that (sender, id) names one group. */
enum { GROUP_ALL = MESH_AXES, GROUP_STAGE };

int mesh_rank(const int degree[MESH_AXES], const int coord[MESH_AXES])
{
    int rank = 0;
    for (int a = MESH_AXES - 1; a >= 0; a--)
        rank = rank * degree[a] + coord[a];
    return rank;
}

void mesh_coord(const int degree[MESH_AXES], int rank, int coord[MESH_AXES])
{
    for (int a = 0; a < MESH_AXES; a++) {
        coord[a] = rank % degree[a];
        rank /= degree[a];
    }
}

static int check_degrees(struct mesh *m, const int degree[MESH_AXES], int rank, struct err *err)
{
    m->world = 1;
    for (int a = 0; a < MESH_AXES; a++) {
        if (degree[a] < 1)
            return err_set(err, "mesh: degree %d along %s: must be at least 1", degree[a],
                           axis_name[a]);
        if (degree[a] > INT_MAX / m->world)
            return err_set(err, "mesh: the degrees multiply to more than %d ranks", INT_MAX);
        m->world *= degree[a];
    }
    if (rank < 0 || rank >= m->world)
        return err_set(err, "mesh: rank %d is not in a world of %d", rank, m->world);
    return 0;
}

static bool same_stage(const struct mesh *m, int rank)
{
    int coord[MESH_AXES];
    mesh_coord(m->degree, rank, coord);
    return coord[MESH_PIPELINE] == m->coord[MESH_PIPELINE];
}

/* Fills the groups along the axes from `ranks` on; returns what is behind them. */
static int *fill_axes(struct mesh *m, int *ranks)
{
    for (int a = 0; a < MESH_AXES; a++) {
        int coord[MESH_AXES];
        memcpy(coord, m->coord, sizeof coord);
        for (coord[a] = 0; coord[a] < m->degree[a]; coord[a]++)
            ranks[coord[a]] = mesh_rank(m->degree, coord);
        m->axis[a] = (struct comm_group){a, m->degree[a], m->coord[a], ranks};
        ranks += m->degree[a];
    }
    return ranks;
}

int mesh_open(struct mesh *m, const int degree[MESH_AXES], int rank, struct err *err)
{
    memset(m, 0, sizeof *m);
    if (check_degrees(m, degree, rank, err))
        return -1;
    memcpy(m->degree, degree, sizeof m->degree);
    m->rank = rank;
    mesh_coord(degree, rank, m->coord);

    size_t places = 0;
    for (int a = 0; a < MESH_AXES; a++)
        places += (size_t)degree[a];
    size_t stage_size = (size_t)(m->world / degree[MESH_PIPELINE]);
    m->ranks = malloc((places + (size_t)m->world + stage_size) * sizeof *m->ranks);
    if (!m->ranks)
        return err_set_errno(err, ENOMEM, "mesh: groups of a world of %d", m->world);

    int *all = fill_axes(m, m->ranks);
    int *stage = all + m->world;
    m->all = (struct comm_group){GROUP_ALL, m->world, rank, all};
    m->stage = (struct comm_group){GROUP_STAGE, 0, 0, stage};
    for (int r = 0; r < m->world; r++) {
        all[r] = r;
        if (!same_stage(m, r))
            continue;
        if (r == rank)
            m->stage.me = m->stage.size;
        stage[m->stage.size++] = r;
    }
    return 0;
}

/* As host.c has it. */
static bool host_peers(const struct comm_group *group, int other)
{
    int n = group->size, apart = (other - group->me + n) % n;
    int back = n - apart;
    return n <= COMM_FLAT || !(apart & (apart - 1)) || !(back & (back - 1));
}

int mesh_peers(const struct mesh *m, int *peers)
{
    int n = 0, stage = 0;
    for (int r = 0; r < m->world; r++) {
        int coord[MESH_AXES], differ = 0;
        mesh_coord(m->degree, r, coord);
        for (int a = 0; a < MESH_AXES; a++)
            differ += coord[a] != m->coord[a];
        bool member = coord[MESH_PIPELINE] == m->coord[MESH_PIPELINE];
        bool needed =
            differ == 1 || host_peers(&m->all, r) || (member && host_peers(&m->stage, stage));
        stage += member;
        if (r != m->rank && needed)
            peers[n++] = r;
    }
    return n;
}

void mesh_close(struct mesh *m)
{
    free(m->ranks);
    memset(m, 0, sizeof *m);
}

int mesh_neighbour(const struct mesh *m, enum mesh_axis axis, int by)
{
    int place = m->coord[axis] + by;
    if (place < 0 || place >= m->degree[axis])
        return -1;
    return m->axis[axis].ranks[place];
}
