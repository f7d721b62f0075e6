"""Models as people have them, for the tests of `zerolab.fit`: each makes itself, and one rank's batch."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from zerolab import catalog, models
from zerolab.simulation import architectures

TOKENS = torch.zeros(2, 16, dtype=torch.int64)


class ConvNet(nn.Module):
    """Blocks of different sizes, and buffers: the statistics of its norms."""

    def __init__(self):
        super().__init__()
        widths = (3, 8, 12, 20)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in pairwise(widths)
        )
        self.head = nn.Linear(20, 7)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Adapted(nn.Module):
    """LoRA: a frozen matrix, and two narrow ones that are trained."""

    def __init__(self, width=24, rank=2):
        super().__init__()
        self.frozen = nn.Linear(width, width)
        self.frozen.requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return functional.gelu(self.frozen(x) + self.up(self.down(x)))


class Adapters(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Adapted() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class TwoDtypes(nn.Module):
    """A head in fp64 behind a body in fp32."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, 11), nn.Tanh(), nn.Linear(11, 11))
        self.head = nn.Linear(11, 5, dtype=torch.float64)

    def forward(self, x):
        return self.head(self.body(x).double()).float()


def llama_of_transformers():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_key_value_heads=2, use_cache=False, **sizes))


def tied_gpt():
    return models.GPT(width=32, heads=2, depth=3, context=16, vocabulary=50)


def llama():
    shape = catalog.Architecture("tiny", "llama", 32, 4, 2, 16, 64, "a test", hidden=48, kv_heads=2)
    return architectures.build(shape)


def loss_of_model(outputs, _targets):
    return outputs.loss


def numbers(*shape):
    return torch.zeros(*shape)


MODELS = {
    "mlp": (models.mlp_odd, numbers(4, 6), numbers(4, 5)),
    "tied gpt": (tied_gpt, TOKENS, TOKENS),
    "llama": (llama, TOKENS, TOKENS),
    "llama of transformers": (llama_of_transformers, {"input_ids": TOKENS, "labels": TOKENS}, TOKENS),
    "cnn": (ConvNet, numbers(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64)),
    "lora": (Adapters, numbers(4, 24), numbers(4, 24)),
    "two dtypes": (TwoDtypes, numbers(4, 9), numbers(4, 5)),
}
