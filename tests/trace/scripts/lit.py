"""A `LightningModule`, trained by Lightning's `Trainer` with the strategy ddp: `lit.py FOLDER [OUT]`."""

import gc
import sys
import warnings

import lightning
import torch
import torch.distributed as dist
from net import Net
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, number):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.net(inputs), targets)
        print(f"rank {self.global_rank} step {number} {loss.item()!r}\n", end="", flush=True)
        return loss

    def validation_step(self, batch, number):
        inputs, targets = batch
        self.log("validation", nn.functional.cross_entropy(self.net(inputs), targets), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


callbacks = []
if len(sys.argv) > 2:
    from zerolab.trace.callbacks import lightning_callback

    callbacks.append(lightning_callback(sys.argv[2], fingerprints=True))
warnings.filterwarnings("ignore")
lightning.seed_everything(0, verbose=False)
dice = torch.Generator().manual_seed(1)
rows = TensorDataset(torch.randn(96, 8, generator=dice), torch.randint(0, 4, (96,), generator=dice))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=1,
    accumulate_grad_batches=2,
    val_check_interval=4,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir=sys.argv[1],
    callbacks=callbacks,
)
trainer.fit(Lit(), DataLoader(rows, batch_size=4), DataLoader(rows, batch_size=16))
del trainer
gc.collect()  # a DDP model may not outlive its group, nor a group of gloo its last collective
dist.destroy_process_group()
