"""Models that are born sharded: the engine made from a file equals that of the whole model, and reads less."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn

from zerolab import DDP, Cluster, RankError, Zero1, Zero2, Zero3, from_file, host_memory, models
from zerolab.engines.weights import Weights
from zerolab.engines.zero3_8bit import Zero3In8Bits
from zerolab.runtime.observers import tell

ROWS, WIDTH = 3, 6


class Odd(nn.Module):
    """Odd shapes, a scalar, an empty parameter, a frozen layer, tied weights within and across blocks, a buffer."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, WIDTH)) for _ in range(3)
        )
        self.norm = nn.BatchNorm1d(WIDTH)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.nothing = nn.Parameter(torch.empty(0, 4))
        self.cube = nn.Parameter(torch.randn(1, 5, 3))
        self.blocks[0][2].bias = self.norm.bias
        self.blocks[2][0].weight = self.blocks[1][0].weight
        self.blocks[1][2].requires_grad_(False)
        self.register_buffer("seen", torch.arange(5), persistent=False)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.norm(x) * self.scale + self.cube.sum() + self.nothing.sum()


class TwoDtypes(nn.Module):
    """A unit of two dtypes."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"a": nn.Linear(WIDTH, 5), "b": nn.Linear(5, WIDTH).double()}) for _ in range(2)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + block["b"](block["a"](x).double()).float()
        return x


MODELS = {"odd": Odd, "two dtypes": TwoDtypes, "mlp-odd": models.mlp_odd}


def built(name):
    torch.manual_seed(0)
    return MODELS[name]()


def on_meta(name):
    with torch.device("meta"):
        model = MODELS[name]()
    if name == "odd":  # a buffer that no file has
        model.seen = torch.arange(5)
    return model


def saved(model, folder, files=1):
    """The model's tensors, each once, in one file, or in several with an index."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    tensors = {name: tensor.detach().clone() for name, tensor in tensors.items() if name != "seen"}
    if files == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder / "model.safetensors"
    names = list(tensors)
    parts = {f"model-{part}.safetensors": names[part::files] for part in range(files)}
    for part, members in parts.items():
        save_file({name: tensors[name] for name in members}, folder / part)
    where = {name: part for part, members in parts.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Each model in a file, and the odd one in three with an index."""
    found = {name: saved(built(name), tmp_path_factory.mktemp("one")) for name in MODELS}
    return found | {"several": saved(built("odd"), tmp_path_factory.mktemp("several"), files=3)}


def trained(engine, name):
    """What a rank holds at first, two losses, and the whole model afterwards."""
    first = [flat.owned.detach().clone() for flat in engine.flats] + [flat.shard.clone() for flat in engine.flats]
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(2):
        x = torch.randn(ROWS, WIDTH)
        wanted = torch.randn(ROWS, 5 if name == "mlp-odd" else WIDTH)
        losses.append(engine.training_step(x, wanted, models.loss))
    return first, losses, engine.state_dict()


def differences(path, engine_class, name, **options):
    """What differs between the engine that is made from the whole model and the one that is made from a file."""
    optimizer = {"optimizer_cls": torch.optim.AdamW, "lr": 1e-2, **options}
    whole = trained(engine_class(built(name), **optimizer), name)
    born = trained(engine_class(from_file(on_meta(name), path), **optimizer), name)
    found = [f"tensor {at}" for at, pair in enumerate(zip(whole[0], born[0], strict=True)) if not torch.equal(*pair)]
    found += ["losses"] * (whole[1] != born[1])
    found += [key for key in whole[2] if not torch.equal(whole[2][key], born[2].get(key, torch.empty(0)))]
    return [f"{engine_class.stage} of {name} {options}: {what}" for what in found]


CASES = [
    *((Zero3, name, {}) for name in MODELS),
    *((engine, "odd", {}) for engine in (DDP, Zero1, Zero2, Zero3In8Bits)),
    (Zero3, "two dtypes", {"offload": True}),
    (Zero3, "mlp-odd", {"precision": "bf16"}),
    (Zero2, "mlp-odd", {"precision": "bf16", "offload": True}),
    (Zero3, "odd", {"release_after_forward": False, "prefetch": 0}),
]


def all_differences(paths):
    thin = {"replicate": lambda _name, parameter: parameter.ndim < 2}
    groups = {"param_groups": [(lambda name, _: "bias" in name, {"weight_decay": 0.0})]}
    found = [line for engine, name, options in CASES for line in differences(paths[name], engine, name, **options)]
    for options in (thin, groups, thin | {"precision": "bf16"}):
        found += differences(paths["mlp-odd"], Zero3, "mlp-odd", **options)
    return found + differences(paths["several"], Zero3, "odd")


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_an_engine_made_from_a_file_is_that_of_the_whole_model_bit_for_bit(clusters, paths, world_size):
    assert clusters(world_size).run(all_differences, paths) == [[]] * world_size


@pytest.mark.parametrize("engine", [Zero2, Zero3, Zero3In8Bits])
def test_an_evaluation_before_the_first_step_changes_nothing_also_in_inference_mode(clusters, paths, engine):
    def trained_after(evaluates):
        born = engine(from_file(on_meta("mlp-odd"), paths["mlp-odd"]), torch.optim.AdamW, lr=1e-2)
        if evaluates:
            with torch.inference_mode():
                born.model(torch.ones(ROWS, WIDTH))
        return trained(born, "mlp-odd")

    pairs = zip(clusters(2).run(trained_after, True), clusters(2).run(trained_after, False), strict=True)
    for evaluated, never in pairs:
        assert evaluated[1] == never[1]
        assert all(torch.equal(evaluated[2][key], value) for key, value in never[2].items())


def bytes_read(path, engine_class, name):
    """What this rank reads of parameters while an engine is made."""
    taken, read = [], Weights.read

    def counting(self, key, start, stop):
        for piece in read(self, key, start, stop):
            taken.append(piece.nbytes)
            yield piece

    Weights.read = counting
    try:
        model = from_file(on_meta(name), path)
        taken.clear()  # buffers, which every rank reads
        engine_class(model, torch.optim.SGD, lr=0.1)
    finally:
        Weights.read = read
    return sum(taken)


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_under_zero3_every_byte_of_the_parameters_is_read_by_one_rank_and_under_ddp_by_all(clusters, paths, world_size):
    whole = sum(parameter.nbytes for parameter in built("odd").parameters())
    read = clusters(world_size).run(bytes_read, paths["odd"], Zero3, "odd")
    assert sum(read) == whole
    assert clusters(world_size).run(bytes_read, paths["odd"], DDP, "odd") == [whole] * world_size


MB = 2**20


@pytest.fixture(scope="module")
def fifty_megabytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "model.safetensors"
    save_file(models.mlp_bench().state_dict(), path)
    return path


def large_on_meta():
    with torch.device("meta"):
        return models.mlp_bench()


def host_memory_of_birth(path, small):
    """What this process takes while the engine is made, its shard's bytes, and those of the largest tensor."""
    Zero3(from_file(on_meta("mlp-odd"), small), torch.optim.SGD, lr=0.1)  # brings in torch's own code
    with host_memory() as host:
        engine = Zero3(from_file(large_on_meta(), path), torch.optim.SGD, lr=0.1)
    shards = [flat.shard.nbytes for flat in engine.flats]
    return host, sum(shards), max(parameter.nbytes for parameter in engine.model.parameters())


def test_in_host_memory_a_rank_takes_its_shard_and_maps_one_tensor_at_most(require, fifty_megabytes, paths):
    require(Path("/proc/self/clear_refs").exists(), "the kernel's mark of a process's memory", "take Linux")
    with Cluster(world_size=4, device="cpu") as fresh:  # a rank that has had more before would not ask for it again
        for host, shard, tensor in fresh.run(host_memory_of_birth, fifty_megabytes, paths["mlp-odd"]):
            assert shard - MB <= host.allocated <= shard + MB
            assert host.mapped <= tensor + MB
            assert shard - MB <= host.peak <= shard + tensor + 2 * MB


def recorded_birth(path):
    tell(lambda observer: observer.beginning())  # within a step a recording notes its highest moment
    engine = Zero3(from_file(large_on_meta(), path), torch.optim.SGD, lr=0.1)
    sizes = [parameter.nbytes for parameter in engine.model.parameters()]
    return sum(flat.shard.nbytes for flat in engine.flats), max(sizes), len(sizes)


def test_in_the_recorders_tally_it_never_has_more_than_its_shard_and_one_mapped_tensor(clusters, fifty_megabytes):
    recording = clusters(4).record(recorded_birth, fifty_megabytes)
    for rank, (shard, tensor, count) in zip(recording.ranks, recording.results, strict=True):
        levels = [sum(event.live.values()) for event in rank.events]
        numbers = 4 * count  # of a parameter that is still in its file there is one, for its shape
        assert levels[-1] == shard + numbers
        assert shard < max(levels) <= shard + tensor + numbers


def resaved(path, folder, **changes):
    """The file with some tensors replaced, or left out where they are None."""
    tensors = {name: tensor for name, tensor in (load_file(path) | changes).items() if tensor is not None}
    save_file(tensors, folder / "changed.safetensors")
    return folder / "changed.safetensors"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"2.bias": None}, "'2.bias' is in the model and not in changed.safetensors, which has '0.bias'"),
        ({"more": torch.ones(1)}, "'more' is in changed.safetensors and not in the model"),
        ({"2.bias": torch.ones(1, 13)}, r"'2.bias' is \(1, 13\) in changed.safetensors and \(13,\) in the model"),
        (
            {"2.bias": torch.ones(13).bfloat16()},
            "'2.bias' is torch.bfloat16 in changed.safetensors and torch.float32 in the model: make the model in",
        ),
    ],
)
def test_a_file_of_another_model_is_refused_with_the_first_tensor_that_differs(paths, tmp_path, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        from_file(on_meta("mlp-odd"), resaved(paths["mlp-odd"], tmp_path, **changes))


def index_of(folder, where):
    index = folder / "model.safetensors.index.json"
    index.write_text(where if isinstance(where, str) else json.dumps(where))
    return index


def test_a_damaged_or_missing_file_is_named_in_a_sentence(paths, tmp_path):
    content = paths["mlp-odd"].read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(content[: len(content) // 2])
    (tmp_path / "noise.safetensors").write_bytes(b"\xff" * 100)
    for place, sentence in {
        tmp_path / "cut.safetensors": r"cut.safetensors cannot be read as safetensors \(.*copy it again",
        tmp_path / "noise.safetensors": "noise.safetensors cannot be read as safetensors",
        tmp_path / "absent.safetensors": "absent.safetensors cannot be read as safetensors",
        tmp_path: "is a folder without model.safetensors.index.json or model.safetensors",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            Weights(place)


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("{", "model.safetensors.index.json cannot be read as an index"),
        ({}, "cannot be read as an index of safetensors files .KeyError"),
        ({"weight_map": {"0.bias": "absent.safetensors"}}, "absent.safetensors cannot be read as safetensors"),
        (
            {"weight_map": {"0.bias": "real.safetensors", "9.bias": "real.safetensors"}},
            "says that '9.bias' is in real.safetensors, and it is not",
        ),
    ],
)
def test_an_index_that_names_what_is_not_there_is_refused(paths, tmp_path, where, sentence):
    (tmp_path / "real.safetensors").write_bytes(paths["mlp-odd"].read_bytes())
    with pytest.raises(ValueError, match=sentence):
        Weights(index_of(tmp_path, where))


def test_a_buffer_on_meta_that_no_file_has_is_refused(paths):
    with torch.device("meta"):
        model = Odd()
    with pytest.raises(ValueError, match="the buffer 'seen' is on the meta device and in no state"):
        from_file(model, paths["odd"])


def test_a_model_on_meta_without_a_file_is_refused_with_the_way_to_give_it_one(clusters):
    with pytest.raises(RankError, match=r"'0.weight' is on the meta device and has no values: .* by from_file\("):
        clusters(1).run(lambda: Zero3(on_meta("mlp-odd"), torch.optim.SGD, lr=0.1))


def test_before_there_is_an_engine_the_parameters_say_where_their_values_are(paths):
    model = from_file(on_meta("mlp-odd"), paths["mlp-odd"])
    assert repr(model[0].weight) == "Parameter '0.weight', still in its file: shape (13, 6), torch.float32"
    with pytest.raises(RuntimeError, match=r"is still in its file, so linear has no numbers.*make an engine"):
        model(torch.ones(1, 6))
