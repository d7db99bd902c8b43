"""The models that the demo and the benchmark train: small enough for a laptop, real enough to learn something."""

from torch.nn import functional

import torch
from torch import nn


class DigitClassifier(nn.Module):
    """Two convolutions and two dense layers for 8x8 grey images of handwritten digits."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    def forward(self, images):
        return self.layers(images)


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each behind a layer norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed_in = nn.Linear(width, 4 * width)
        self.feed_out = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.attention_in(self.attention_norm(x)).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_out(functional.gelu(self.feed_in(self.feed_norm(x))))


class ByteLanguageModel(nn.Module):
    """A small GPT over bytes: no tokenizer, a vocabulary of 256. 5.1 million parameters by default."""

    def __init__(self, context=64, width=320, depth=4, heads=5):
        super().__init__()
        self.token = nn.Embedding(256, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.apply(self._start_small)

    @staticmethod
    def _start_small(module):
        # With PyTorch's unit-variance embeddings the first losses are far above ln(256), and most of
        # a short training run would go into undoing that.
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Recommender(nn.Module):
    """Tells from the items that a user has seen whether they click on another one. Most of its 3.2 million parameters are a
    table of all items, of which a step uses few rows. `sparse`: the table's gradient has these rows only."""

    def __init__(self, items=200_000, width=16, sparse=False):
        super().__init__()
        self.items = nn.Embedding(items, width, sparse=sparse)
        self.layers = nn.Sequential(nn.Linear(3 * width, 64), nn.ReLU(), nn.Linear(64, 2))
        nn.init.normal_(self.items.weight, std=0.1)

    def forward(self, items):
        vectors = self.items(items)
        candidate, seen = vectors[:, 0], vectors[:, 1:].mean(dim=1)
        return self.layers(torch.cat([candidate, seen, candidate * seen], dim=1))


def parameter_count(model):
    return sum(parameter.numel() for parameter in model.parameters())
