"""A LoRA of peft on a Llama whose blocks FSDP2 shards: the base is frozen, the adapters train."""

import torch
import torch.distributed as dist
from net import join
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

rank = join()
shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
base = LlamaForCausalLM(LlamaConfig(vocab_size=50, max_position_embeddings=16, **shape))
model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0))
for layer in model.base_model.model.model.layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), lr=1e-2)
for step in range(1, 6):
    tokens = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(100 * step + rank))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"rank {rank} step {step} {loss.item()!r}\n", end="", flush=True)
dist.destroy_process_group()
