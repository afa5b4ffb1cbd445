#!/usr/bin/env python3
"""A PyTorch program under gtrain: data parallel, on CPUs, with a checkpoint of its own.

    srun --gtrain-plan=ddp.yaml --gtrain-spares=1 -N5 --ntasks-per-node=1 python3 ddp.py FOLDER [STEPS]

gtrain gives each process RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which is all that env://
needs. When a node dies, it ends the other processes and starts all ranks again, a spare in the lost
node's place, with a new MASTER_PORT. What the program has to do for it is what it does after any
other restart: go on from its newest checkpoint. FOLDER is one that all nodes see.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SEED = 1
BATCH = 32  # samples of a step, over all ranks
WIDTH = 64


def samples(step, rank, world):
    """A sample is a function of the step and its index: whoever computes it sees the same."""
    random = torch.Generator().manual_seed(SEED * 1_000_003 + step)
    x = torch.randn(BATCH, WIDTH, generator=random)
    return x[rank::world], x.sin()[rank::world]


def save(path, step, model, optimizer):
    """Whole or not at all: under another name first, on the disk, then renamed."""
    with open(path + ".new", "wb") as file:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)


def main():
    folder = sys.argv[1]
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    path = os.path.join(folder, "checkpoint.pt")
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="env://")
    rank, world = dist.get_rank(), dist.get_world_size()

    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start = 0
    if os.path.exists(path):
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    parallel = DistributedDataParallel(model)

    generation = os.environ.get("GTRAIN_GENERATION", "1")
    for step in range(start, steps):
        x, y = samples(step, rank, world)
        loss = torch.nn.functional.mse_loss(parallel(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach().div_(world))
        if rank == 0:
            save(path, step + 1, model, optimizer)
            print(f"generation {generation} step {step + 1}/{steps} loss {loss.item():.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
