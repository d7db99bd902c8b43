"""Trains with PyTorch Lightning: torchrun --nproc-per-node 2 with_lightning.py [netsum|gloo]"""

import os
import sys

import netsum.torch  # registers the backend
import pytorch_lightning as lightning
from pytorch_lightning.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset

import torch


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def training_step(self, batch, _):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), targets)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


def main():
    backend = sys.argv[1] if len(sys.argv) > 1 else "netsum"
    lightning.seed_everything(1)
    ranks_of_host = int(
        os.environ["LOCAL_WORLD_SIZE"]
    )  # both are set by torchrun; Lightning compares them with its own
    inputs = torch.randn(512, 16)
    loader = DataLoader(TensorDataset(inputs, inputs @ torch.randn(16, 1)), batch_size=32, shuffle=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks_of_host,
        num_nodes=int(os.environ["WORLD_SIZE"]) // ranks_of_host,
        strategy=DDPStrategy(process_group_backend=backend),
        max_epochs=10,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Regression(), loader)
    if trainer.is_global_zero:
        print(f"loss {trainer.callback_metrics['loss'].item():.4f}")
        if backend == "netsum":
            print(netsum.torch.describe())


if __name__ == "__main__":
    main()
