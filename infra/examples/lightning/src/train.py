"""PyTorch Lightning, made movable by one callback. Replace the module and the data by yours."""

import os

import lightning as L
import lowtide
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(os.environ.get("STEPS", "1000"))
EVERY = int(os.environ.get("EVERY", "100"))
NAME = "lightning.ckpt"


class Movable(L.Callback):
    """Saves each EVERY steps and when lowtide asks, and stops then."""

    def on_train_start(self, trainer, module):
        if trainer.is_global_zero:
            lowtide.start()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        step = trainer.global_step
        # All processes must agree, or they would wait for one another for ever.
        leave = trainer.strategy.broadcast(lowtide.asked())
        if trainer.is_global_zero:
            lowtide.progress(step, STEPS)
        if leave or step % EVERY == 0 or step >= STEPS:
            path = os.path.join(lowtide.directory(), f"step-{step}")
            trainer.save_checkpoint(os.path.join(path, NAME))
            if trainer.is_global_zero:
                lowtide.ready(path, step)
        if leave:
            trainer.should_stop = True


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 1))

    def training_step(self, batch, _):
        return ((self.net(batch[0]) - batch[0].sum(dim=1, keepdim=True)) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(int(os.environ.get("SEED", "7")))
    data = DataLoader(TensorDataset(torch.randn(4096, 32)), batch_size=64, shuffle=True)
    trainer = L.Trainer(max_steps=STEPS, callbacks=[Movable()], logger=False, enable_checkpointing=False, enable_progress_bar=False)
    path = lowtide.restored()
    trainer.fit(Module(), data, ckpt_path=os.path.join(path, NAME) if path else None)
    if trainer.global_step >= STEPS:
        lowtide.result(f"{trainer.global_step} steps")


if __name__ == "__main__":
    main()
