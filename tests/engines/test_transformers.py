"""Real architectures with random weights, and a LoRA, end where one process ends; nothing is downloaded."""

import pytest
import torch

from zerolab.engines.partition import find_units
from zerolab.theory import STAGES

ROWS, LENGTH, WORDS = 12, 6, 17
SMALL = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def llama():
    import transformers

    config = transformers.LlamaConfig(**SMALL, intermediate_size=24, num_key_value_heads=1, tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config)


def gpt2():
    import transformers

    config = transformers.GPT2Config(vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=LENGTH)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return transformers.GPT2LMHeadModel(config)


def mixtral():
    import transformers

    config = transformers.MixtralConfig(
        **SMALL, intermediate_size=24, num_key_value_heads=1, num_local_experts=3, num_experts_per_tok=1
    )
    return transformers.MixtralForCausalLM(config)


def bert():
    import transformers

    nothing = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(**SMALL, **nothing, intermediate_size=24, max_position_embeddings=LENGTH)
    return transformers.BertForMaskedLM(config)


def t5():
    import transformers

    config = transformers.T5Config(vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
    config.dropout_rate, config.decoder_start_token_id = 0.0, 0
    return transformers.T5ForConditionalGeneration(config)


def vit():
    import transformers

    sizes = {key: value for key, value in SMALL.items() if key != "vocab_size"}
    config = transformers.ViTConfig(**sizes, intermediate_size=24, image_size=4, patch_size=2, num_labels=WORDS)
    return transformers.ViTForImageClassification(config)


def lora():
    import peft

    config = peft.LoraConfig(r=2, lora_dropout=0.0, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    return peft.get_peft_model(llama(), config)


def recomputing():
    model = llama()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def recomputing_lora():
    model = lora()
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def prompts():
    import peft

    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    return peft.get_peft_model(llama(), config)


MODELS = {
    model.__name__: model
    for model in (llama, gpt2, mixtral, bert, t5, vit, lora, recomputing, recomputing_lora, prompts)
}


def make(name):
    torch.manual_seed(0)
    return MODELS[name]().train()


def batch(name, step):
    """The whole batch of one step, as the keywords that the model takes."""
    generator = torch.Generator().manual_seed(step)
    if name == "vit":
        images = torch.randn(ROWS, 3, 4, 4, generator=generator)
        return {"pixel_values": images, "labels": torch.randint(0, WORDS, (ROWS,), generator=generator)}
    tokens = torch.randint(0, WORDS, (ROWS, LENGTH), generator=generator)
    return {"input_ids": tokens, "labels": (tokens * 3 + 1) % WORDS}


def own_loss(outputs, _targets):
    return outputs.loss


def train_alone(name, optimizer_cls, steps, **keywords):
    model = make(name)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optimizer_cls(trainable, **keywords)
    for step in range(steps):
        model(**batch(name, step)).loss.backward()
        for parameter in trainable:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        optimizer.step()
        optimizer.zero_grad()
    return {key: value.clone() for key, value in model.state_dict().items()}


def train_on_ranks(name, optimizer_cls, steps, **keywords):
    import torch.distributed as dist

    from zerolab.engines import ENGINES

    ends = {}
    for stage in STAGES:
        engine = ENGINES[stage](make(name), optimizer_cls, **keywords)
        for step in range(steps):
            mine = {key: rows.chunk(dist.get_world_size())[dist.get_rank()] for key, rows in batch(name, step).items()}
            engine.training_step(mine, None, own_loss)
        ends[stage] = engine.state_dict()
    return ends


def far_from(reference, ends, bound):
    far = {}
    for stage, state in ends.items():
        assert state.keys() == reference.keys()
        far[stage] = max((state[key] - reference[key]).abs().max().item() for key in reference)
    return {stage: distance for stage, distance in far.items() if not distance <= bound}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_sgd_reaches_the_weights_of_one_process_on_the_whole_batch(clusters, name):
    reference = train_alone(name, torch.optim.SGD, 3, lr=0.1)
    assert any(not torch.equal(reference[key], start) for key, start in make(name).state_dict().items())
    for ends in clusters(2).run(train_on_ranks, name, torch.optim.SGD, 3, lr=0.1):
        assert far_from(reference, ends, 1e-6) == {}


def test_a_lora_under_weight_decay_leaves_the_frozen_weights_as_they_were(clusters):
    start = make("lora").state_dict()
    for ends in clusters(2).run(train_on_ranks, "lora", torch.optim.AdamW, 2, lr=0.01, weight_decay=0.5):
        for state in ends.values():
            moved = {key for key in start if not torch.equal(state[key], start[key])}
            assert moved == {key for key in start if "lora_" in key}


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("llama", ["model.layers.0", "model.layers.1"]),
        ("gpt2", ["transformer.h.0", "transformer.h.1"]),
        ("bert", ["bert.encoder.layer.0", "bert.encoder.layer.1"]),
        ("t5", ["encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1"]),
        ("lora", ["base_model.model.model.layers.0", "base_model.model.model.layers.1"]),
    ],
)
def test_the_units_are_the_blocks(name, units):
    assert find_units(make(name)) == units


def test_a_vision_model_has_one_unit_for_each_block():
    units = find_units(make("vit"))
    assert [unit.rsplit(".", 1)[1] for unit in units] == ["0", "1"]
