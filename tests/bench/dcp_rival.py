#!/usr/bin/env python3
"""dcp_rival.py - the same checkpoint by this library, torch.save and torch.distributed.checkpoint.

    dcp_rival.py BENCH_CKPT [DIR [MEGABYTES [ROUNDS [TENSORS]]]]      (/var/tmp, 256, 5, 64)

BENCH_CKPT is tests/bench/bench_ckpt. One rank, float32 tensors of equal size in host memory, one
folder. Each round, in turn: bench_ckpt (without fio), torch.save with fsync and torch.load,
dcp.save and dcp.load, dcp.async_save. Three times are taken of each: how long the caller is held,
how long until the bytes are durable (fsync included), how long a load takes. Printed: median, and
lowest to highest, and the ratio to this library's within a round. This library also makes and
checks a CRC32C of every byte; the others do not. Needs PyTorch; nothing else here does."""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

warnings.filterwarnings("ignore")


def timed(call):
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def ours(bench, folder, megabytes, tensors):
    """(held, durable, load) in seconds, from bench_ckpt's figures. No PATH: no fio."""
    out = subprocess.run([bench, folder, str(megabytes), "1", str(tensors)], check=True, text=True,
                         capture_output=True, env={"PATH": "/nonexistent"}).stdout
    figure = lambda start: float(re.search(rf"^{start}\s+([0-9.]+)", out, re.M).group(1))
    held = figure("stall of a save per 100 MB") / 1e3 * megabytes / 100
    write = megabytes / 1e3 / figure("write, to durable and renamed")
    load = megabytes / 1e3 / figure("restore, checked, in the tensors")
    return held, held + write, load


def torch_save(folder, state):
    path = os.path.join(folder, "state.pt")

    def save():
        with open(path, "wb") as f:
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())

    held, _ = timed(save)
    drop_cached(folder)
    load, _ = timed(lambda: torch.load(path))
    return held, held, load


def dcp_save(folder, state):
    held, _ = timed(lambda: dcp.save(state, checkpoint_id=folder))
    drop_cached(folder)
    load, _ = timed(lambda: dcp.load(state, checkpoint_id=folder))
    return held, held, load


def dcp_async(folder, state):
    start = time.perf_counter()
    held, future = timed(lambda: dcp.async_save(state, checkpoint_id=folder))
    future.result()
    return held, time.perf_counter() - start, None


def drop_cached(folder):
    """Loads come from the disk, as ours do."""
    for root, _, names in os.walk(folder):
        for name in names:
            fd = os.open(os.path.join(root, name), os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def spread(values):
    return f"{statistics.median(values):9.3f} ({min(values):.3f} to {max(values):.3f})"


def main():
    defaults = [None, "/var/tmp", "256", "5", "64"]
    args = sys.argv[1:] + defaults[len(sys.argv) - 1:]
    if not args[0]:
        sys.exit(__doc__)
    bench, base, megabytes, rounds, tensors = args[0], args[1], *map(int, args[2:5])
    each = megabytes * 1000000 // tensors // 4
    state = {f"tensor.{i}": torch.randn(each) for i in range(tensors)}
    work = tempfile.mkdtemp(prefix="dcp-rival-", dir=base)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rivals = {"gtrain": lambda d: ours(bench, d, megabytes, tensors),
              "torch.save": lambda d: torch_save(d, state),
              "dcp.save": lambda d: dcp_save(d, state),
              "dcp.async_save": lambda d: dcp_async(d, state)}
    times = {name: [] for name in rivals}
    try:
        for i in range(rounds + 1):  # one before those that count: threads, libraries, caches
            for name, run in rivals.items():
                folder = tempfile.mkdtemp(dir=work)
                took = run(folder)
                shutil.rmtree(folder)
                if i > 0:
                    times[name].append(took)
    finally:
        shutil.rmtree(work)
        dist.destroy_process_group()
    print(f"{megabytes} MB in {tensors} tensors, {rounds} rounds, torch {torch.__version__}, "
          f"{torch.get_num_threads()} threads")
    for column, what in enumerate(["caller held, s", "until durable, s", "load, s"]):
        print(what)
        for name, rows in times.items():
            if rows[0][column] is None:
                continue
            values = [row[column] for row in rows]
            ratios = [row[column] / our[column] for row, our in zip(rows, times["gtrain"])]
            print(f"  {name:16}{spread(values):34} {spread(ratios)} times gtrain's")


if __name__ == "__main__":
    main()
