/* held.c - see held.h. */
#include "held.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LARGE_PAGE = 2 << 20 };

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* younger than some C libraries */
#endif

int held_map(int fd, int64_t bytes, unsigned char **out, struct err *err)
{
    size_t n = (size_t)bytes, room = n + LARGE_PAGE;
    unsigned char *all =
        mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return err_set_errno(err, errno, "a place for %" PRId64 " bytes for snapshots", bytes);
    size_t before = (LARGE_PAGE - (uintptr_t)all % LARGE_PAGE) % LARGE_PAGE;
    unsigned char *map = all + before;
    if (mmap(map, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int error = errno;
        munmap(all, room);
        return err_set_errno(err, error, "mapping %" PRId64 " bytes for snapshots", bytes);
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (n + page - 1) / page * page;
    if (before)
        munmap(all, before);
    if (room - before > whole)
        munmap(map + whole, room - before - whole);
    *out = map;
    return 0;
}

void held_unmap(unsigned char *map, int64_t bytes)
{
    munmap(map, (size_t)bytes);
}

int held_lengthen(int fd, int64_t bytes, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) || (st.st_size < bytes && ftruncate(fd, bytes)))
        return err_set_errno(err, errno, "%" PRId64 " bytes for a snapshot", bytes);
    return 0;
}

/* Where there is nothing at all no large page is made, and of all its small ones it would be a
 * copy: so one small one first. What is refused here is made up for, or told, by who calls. */
static void take_large_pages(int fd, unsigned char *map, int64_t bytes)
{
    for (int64_t at = 0; at + LARGE_PAGE <= bytes; at += LARGE_PAGE)
        if (fallocate(fd, 0, at, 1))
            return;
    madvise(map, (size_t)bytes, MADV_COLLAPSE);
}

int held_fill(int fd, unsigned char *map, int64_t bytes, struct err *err)
{
    int rc;
    take_large_pages(fd, map, bytes);
    do
        rc = fallocate(fd, 0, 0, bytes);
    while (rc && errno == EINTR);
    if (rc)
        return err_set_errno(err, errno, "memory for a snapshot, %" PRId64 " bytes", bytes);
#ifdef MADV_POPULATE_WRITE /* the first steps must not pay for page faults */
    madvise(map, (size_t)bytes, MADV_POPULATE_WRITE);
#endif
    return 0;
}
