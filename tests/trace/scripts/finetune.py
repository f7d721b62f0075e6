"""A fine-tuning with the `Trainer` of transformers, which torchrun makes DDP: `finetune.py FOLDER [OUT]`."""

import gc
import sys

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 50, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Print(TrainerCallback):
    def on_log(self, arguments, state, control, logs=None, **keywords):
        rank = arguments.process_index
        said = {name: value for name, value in logs.items() if name in ("loss", "grad_norm", "eval_loss")}
        print(f"rank {rank} step {state.global_step} {said}\n", end="", flush=True)


def main():
    set_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, max_position_embeddings=16, **shape))
    arguments = TrainingArguments(
        output_dir=sys.argv[1],
        max_steps=5,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    callbacks = [Print()]
    if len(sys.argv) > 2:
        from zerolab.trace.callbacks import transformers_callback

        callbacks.append(transformers_callback(sys.argv[2], fingerprints=True))
    trainer = Trainer(model, arguments, train_dataset=Rows(), eval_dataset=Rows(), callbacks=callbacks)
    trainer.train()


main()
gc.collect()  # of the trainer: a DDP model may not outlive its group, nor a group of gloo its last collective
dist.destroy_process_group()
