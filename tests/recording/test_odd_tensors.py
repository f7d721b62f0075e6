"""Tensors that have several storages, as sparse ones, or show none: what has them trains, and its bytes are right."""

import pytest
import torch
import torch.distributed as dist
from test_ledger import live
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import zerolab
from zerolab import Recording
from zerolab.engines import ENGINES
from zerolab.recording.ledger import COMMUNICATION, GRADIENTS, OTHER, Ledger
from zerolab.recording.storages import parts_of, storages_of

TOKENS = torch.tensor([[1, 2, 2], [3, 1, 2]])
WIDTH = 4
SPARSE_GRADIENT = TOKENS.numel() * (8 + 4 * WIDTH)  # an index and a row of values for each token
EYE = {  # bytes of indices and of values of a unit matrix of 4 x 4; in all, torch keeps the memory of both coordinates
    "to_sparse": (64, 16),
    "to_sparse_csr": (40, 64, 16),
    "to_sparse_csc": (40, 64, 16),
    "to_sparse_bsr": (24, 32, 32),
    "to_sparse_bsc": (24, 32, 32),
}


def eye(method):
    """A unit matrix of 4 x 4 in another layout."""
    return getattr(torch.eye(4), method)(*[(2, 2)] * method.startswith("to_sparse_b"))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("method", EYE)
def test_of_a_sparse_tensor_its_indices_and_values_count_until_it_goes(method):
    ledger, tensor = Ledger(), eye(method)
    assert [storage.nbytes() for storage in storages_of(tensor)] == [*EYE[method]]
    for shown in (tensor, tensor.detach()):
        ledger.see(shown)
        assert live(ledger) == sum(EYE[method])
    del tensor, shown
    assert live(ledger) == 0


def test_a_tensor_whose_memory_torch_does_not_show_is_left_out():
    ledger, tensor = Ledger(), torch.ones(4).to_mkldnn()
    ledger.see(tensor)
    ledger.assign(tensor, GRADIENTS, "unit")
    ledger.travels(tensor)
    ledger.exclude(tensor)
    assert ledger.note_existing(tensor) == 0
    assert ledger.unit_of(tensor) is None
    assert live(ledger) == 0


def test_a_sparse_tensor_can_be_assigned_sent_and_excluded_like_any_other():
    ledger, tensor = Ledger(), eye("to_sparse")
    ledger.see(tensor)
    assert ledger.host.live[OTHER] == 80
    ledger.travels(tensor)
    assert ledger.host.live[COMMUNICATION] == ledger.host.peak[COMMUNICATION] == 80
    ledger.assign(tensor, GRADIENTS, "0")
    assert ledger.host.live[GRADIENTS] == 80
    assert ledger.unit_of(tensor) == "0"
    ledger.exclude(tensor)
    assert live(ledger) == 0


def test_a_sparse_tensor_from_before_the_recording_counts_once_it_is_assigned():
    ledger, tensor = Ledger(), eye("to_sparse")
    assert [ledger.note_existing(tensor) for _ in range(2)] == [80, 0]
    assert live(ledger) == 0
    ledger.assign(tensor, GRADIENTS, "0")
    assert ledger.host.live[GRADIENTS] == 80


def test_asking_for_the_parts_of_a_tensor_is_no_operation_of_the_run():
    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen += 1
            return func(*args, **kwargs or {})

    tensor = eye("to_sparse")
    with Counting() as counting:
        assert len(parts_of(tensor)) == 2
    assert counting.seen == 0


def test_a_sparse_result_that_is_written_into_another_tensor_is_seen(record):
    def train():
        model, out = nn.Linear(4, 4), torch.empty(0, 0, layout=torch.sparse_coo)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        outputs = model(torch.ones(2, 4))
        torch.add(eye("to_sparse"), eye("to_sparse"), out=out)
        outputs.sum().backward()
        optimizer.step()
        return out

    recording = record(train)
    assert recording.info.steps == 1
    # The two that are added and their sum, which has an index and a value for each of theirs until it is coalesced.
    assert recording.info.peaks["forward"]["activations"] >= 80 + 80 + 80


def embedding(optimizer=torch.optim.SGD, kind=nn.Embedding, backwards=1, **settings):
    """Trains an embedding that has sparse gradients; returns its weights."""
    torch.manual_seed(0)
    model = kind(10, WIDTH, sparse=True)
    optimizer = optimizer(model.parameters(), lr=0.1, **settings)
    for _ in range(3):
        for _ in range(backwards):
            model(TOKENS).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.weight.tolist()


@pytest.mark.parametrize("backwards", [1, 2])
def test_a_sparse_gradient_counts_by_what_it_has_also_when_backward_has_added_to_it(record, backwards):
    state = record(lambda: embedding(backwards=backwards)).info.state
    assert state == {"parameters": 160, "gradients": backwards * SPARSE_GRADIENT, "optimizer_state": 0}


def test_a_sparse_optimizer_state_counts_as_state(record):
    state = record(lambda: embedding(momentum=0.5)).info.state
    # Momentum begins as a copy of the gradient, and the second update adds the second one to it.
    assert state == {"parameters": 160, "gradients": SPARSE_GRADIENT, "optimizer_state": 2 * SPARSE_GRADIENT}


def test_a_sparse_gradient_is_held_like_any_other(record):
    held = [event for event in record(embedding).events if (event.op, event.category) == ("hold", "gradients")]
    assert [event.spans for event in held] == [((0, 40),), (), ((0, 40),), (), ((0, 40),)]


def small_loop(forward):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        forward(model).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.weight.tolist()


def gradients_of_each_row(model):
    """The first call of the model is within functorch: its parameters and its input are wrapped."""

    def loss(parameters, inputs):
        return torch.func.functional_call(model, parameters, (inputs,)).sum()

    inputs, parameters = torch.eye(4), {name: value.detach() for name, value in model.named_parameters()}
    torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, inputs)
    return model(inputs)


LOOPS = {
    "an embedding": embedding,
    "an embedding under SparseAdam": lambda: embedding(torch.optim.SparseAdam, nn.EmbeddingBag),
    "a sparse product": lambda: small_loop(lambda model: torch.sparse.mm(eye("to_sparse"), model(torch.ones(4, 4)))),
    "rows of a sparse matrix": lambda: small_loop(lambda model: eye("to_sparse_csr") @ model(torch.ones(4, 4))),
    "oneDNN": lambda: small_loop(lambda model: model(torch.ones(4, 4).to_mkldnn().to_dense())),
    "gradients of each row": lambda: small_loop(gradients_of_each_row),
    "a Jacobian": lambda: small_loop(
        lambda model: torch.func.jacrev(model)(torch.ones(4)).sum() + model(torch.ones(4, 4))
    ),
    "what is mapped": lambda: small_loop(lambda model: torch.vmap(model)(torch.ones(4, 4))),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("times_only", [False, True], ids=["whole", "times only"])
def test_what_trains_unrecorded_trains_the_same_while_it_is_recorded(name, times_only, tmp_path):
    plain = LOOPS[name]()
    with zerolab.recording(tmp_path / "run.json", steps=(1, 2), times_only=times_only):
        assert LOOPS[name]() == plain
    assert Recording.load(tmp_path / "run.json").info.steps == 2


@pytest.mark.parametrize("stage", ["ddp", "zero1", "zero2", "zero3"])
def test_an_engine_with_sparse_gradients_holds_what_the_formula_says(cluster, stage):
    def train():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(10, WIDTH, sparse=True), nn.Linear(WIDTH, 2))
        engine = ENGINES[stage](model, torch.optim.AdamW, lr=0.1)
        batch = TOKENS, torch.ones(2, 3, 2), nn.functional.mse_loss
        return [float(engine.training_step(*batch)) for _ in range(2)]

    recording = cluster.record(train)
    assert recording.results == cluster.run(train)
    for rank in recording.ranks:
        counters = 4 * len(recording.units)  # Adam's count of steps, one for each flat
        assert sum(rank.state.values()) == sum(recording.info.formula.values()) + counters


def test_torchs_ddp_trains_an_embedding_with_sparse_gradients(cluster):
    def train():
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(nn.Embedding(10, WIDTH, sparse=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(TOKENS).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.module.weight.tolist()

    recording = cluster.record(train)
    assert recording.results == cluster.run(train)
    merged = TOKENS.unique().numel() * (8 + 4 * WIDTH)  # gloo adds up the rows of equal tokens before it sends them
    for rank in recording.ranks:
        assert {event.logical_bytes for event in rank.events if event.op == "all_reduce"} == {merged}
        assert rank.state["gradients"] == merged
    assert cluster.record_times(train).rank(0).info.logical_bytes == recording.rank(0).info.logical_bytes


def test_a_sparse_all_reduce_has_the_bytes_that_its_parts_have(cluster):
    def add_up():
        tensor = eye("to_sparse")
        dist.all_reduce(tensor)
        return tensor.to_dense().tolist()

    recording = cluster.record(add_up)
    assert recording.results == [torch.eye(4).mul(2).tolist()] * 2
    [event] = [event for event in recording.rank(0).events if event.kind == "collective"]
    assert (event.op, event.numel, event.logical_bytes, event.numbers) == ("all_reduce", 16, 80, None)


def evaluate_rows_of_unlike_lengths(seen):
    torch.manual_seed(0)
    rows, weight = [torch.randn(5, 16), torch.randn(3, 16)], torch.randn(8, 16)
    with torch.inference_mode():
        seen += nn.functional.linear(torch.nested.nested_tensor(rows), weight).chunk(2, -1)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_compute_the_same_in_inference_mode_while_they_are_recorded(record):
    seen = []
    evaluate_rows_of_unlike_lengths(seen)
    record(evaluate_rows_of_unlike_lengths, seen)
    assert all(torch.equal(seen[half].values(), seen[half + 2].values()) for half in (0, 1))


def alias(x):
    """In evaluation dropout gives its input back."""
    y = nn.functional.dropout(x, 0.5, training=False)
    y += 1
    return x + y


INFERENCES = {
    "dropout": alias,
    "lstm": lambda x: nn.LSTM(4, 4, num_layers=2, dropout=0.5)(x)[0],  # it draws
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "interpolate": lambda x: nn.functional.interpolate(x[None, None], scale_factor=2.3, mode="bicubic"),
}


def infer(name, seen):
    torch.manual_seed(0)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        seen += [INFERENCES[name](torch.rand(5, 4)), torch.rand(1)]


@pytest.mark.parametrize("name", INFERENCES)
def test_what_is_inferred_is_the_same_while_it_is_recorded_under_autocast_too(record, name):
    seen = []
    infer(name, seen)
    record(infer, name, seen)
    for plain, recorded in zip(seen[:2], seen[2:], strict=True):
        assert (plain.dtype, plain.shape) == (recorded.dtype, recorded.shape)
        assert torch.equal(plain, recorded)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_recording_that_begins_within_a_transformation_finds_the_parts_of_sparse_tensors_all_the_same(tmp_path):
    there = [eye("to_sparse"), eye("to_sparse_csr")]
    with zerolab.recording(tmp_path / "run.json", steps=(1, 2)):
        small_loop(lambda model: torch.func.jacrev(model)(torch.ones(4)).sum() + model(torch.ones(4, 4)))
    assert zerolab.Recording.load(tmp_path / "run.json").info.steps == 2
    del there
