"""Trains with Hugging Face Accelerate: torchrun --nproc-per-node 2 with_accelerate.py [netsum|gloo]"""

import sys

import netsum.torch  # registers the backend
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

import torch


def main():
    backend = sys.argv[1] if len(sys.argv) > 1 else "netsum"
    dist.init_process_group(backend)  # before Accelerator(), which would choose Gloo on the CPU
    accelerator = Accelerator(cpu=True)
    set_seed(1)
    inputs = torch.randn(512, 16)
    targets = inputs @ torch.randn(16, 1)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.02), loader)
    for _ in range(10):
        for batch, target in loader:
            loss = torch.nn.functional.mse_loss(model(batch), target)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    loss = accelerator.reduce(loss.detach(), reduction="mean")
    accelerator.print(f"loss {loss.item():.4f}")
    if backend == "netsum":
        accelerator.print(netsum.torch.describe())
    accelerator.end_training()


if __name__ == "__main__":
    main()
