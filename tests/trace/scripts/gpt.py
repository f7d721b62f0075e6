"""Pretraining of a small GPT, in the manner of nanoGPT: DDP, micro-batches, autocast, clipping, a rate per step."""

import math
from contextlib import nullcontext

import torch
import torch.distributed as dist
from net import join
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

WORDS, LENGTH, WIDTH, HEADS, MICRO_BATCHES, STEPS = 64, 16, 32, 2, 2, 5


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        heads = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, -1)]
        return self.c_proj(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(dice):
    tokens = torch.randint(0, WORDS, (4, LENGTH + 1), generator=dice)
    return tokens[:, :-1], tokens[:, 1:]


@torch.no_grad()
def estimate_loss(model):
    model.eval()
    dice = torch.Generator().manual_seed(7)
    found = sum(model(*get_batch(dice))[1].item() for _ in range(2)) / 2
    model.train()
    return found


rank = join()
raw_model = GPT()
model = DistributedDataParallel(raw_model)
matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
dice = torch.Generator().manual_seed(rank)
X, Y = get_batch(dice)
for step in range(1, STEPS + 1):
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / STEPS))
    if step % 2 == 0 and rank == 0:
        print(f"step {step} evaluated {estimate_loss(raw_model)!r}\n", end="", flush=True)
    for micro_batch in range(MICRO_BATCHES):
        last = micro_batch == MICRO_BATCHES - 1
        with nullcontext() if last else model.no_sync():
            with torch.autocast("cpu", torch.bfloat16):
                logits, loss = model(X, Y)
                loss = loss / MICRO_BATCHES
            X, Y = get_batch(dice)
            loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"rank {rank} step {step} {loss.item()!r} {norm.item()!r}\n", end="", flush=True)
dist.destroy_process_group()
