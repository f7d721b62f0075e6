"""Tensors and settings of every kind: fingerprints read them or list them as not seen, and the training goes on."""

import json
import subprocess
import sys

import pytest
import torch
from small import Graph, seeded, train
from torch import nn
from torch._subclasses import FakeTensorMode

from zerolab.difference.compare import compare
from zerolab.difference.fingerprint import SIGNS
from zerolab.difference.prints import print_of, rows_of, unreadable
from zerolab.difference.runs import Run

SPARSE = torch.eye(6).to_sparse()


def ones(*shape, **keywords):
    return torch.ones(*(shape or (6, 4)), **keywords)


def ragged():
    return torch.nested.nested_tensor([ones(2, 4), ones(3, 4)], layout=torch.jagged)


def row_by_row(model, _):
    """An ordinary loss, and the gradients that each row has by itself."""
    own = {name: each.detach() for name, each in model.named_parameters()}

    def loss(own, row):
        return torch.func.functional_call(model, own, (row,)).square().mean()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(own, ones())
    return model(ones()).square().mean() + sum(each.square().sum() for each in found.values())


def embedding(*, sparse):
    return seeded(lambda: nn.Sequential(nn.Embedding(9, 4, sparse=sparse), nn.Linear(4, 4)))


def embedded(model, step):
    return model(torch.arange(6) + step).square().sum()


OF_BATCH = "a tensor of the batch"
UNSEEN = {  # how the model is made, the loss, and what is not seen of it
    "sparse batch": (Graph, lambda model, _: model(ones(), SPARSE).sum(), f"{OF_BATCH} (sparse_coo)"),
    "compressed": (Graph, lambda model, _: model(ones(), SPARSE.to_sparse_csr()).sum(), f"{OF_BATCH} (sparse_csr)"),
    "jagged": (Graph, lambda model, _: model(ragged()).values().sum(), f"{OF_BATCH} (nested)"),
    "vmap": (Graph, lambda model, _: torch.func.vmap(model)(ones()).sum(), f"{OF_BATCH} (within torch.func)"),
    "jacobian": (
        Graph,
        lambda model, _: model(ones()).sum() + torch.func.jacrev(model)(ones(4)).sum(),
        f"{OF_BATCH} (within torch.func)",
    ),
    "row by row": (Graph, row_by_row, "a forward within torch.func"),
    "sparse buffer": (lambda: Graph(SPARSE), lambda model, _: model(ones()).sum(), "kept (sparse_coo)"),
    "sparse gradient": (lambda: embedding(sparse=True), embedded, "gradient of 0.weight (sparse_coo)"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("name", UNSEEN)
def test_what_cannot_be_read_is_listed_and_the_training_goes_on_as_without(tmp_path, name):
    make, loss, unseen = UNSEEN[name]
    assert train(tmp_path / "run", seeded(make), loss) == train(None, seeded(make), loss)
    assert unseen in Run(tmp_path / "run").unseen
    result = compare(tmp_path / "run", tmp_path / "run")
    assert result.parting is None
    assert any(unseen in note for note in result.notes)


def test_parameters_are_read_within_vmap_as_without_it(tmp_path):
    train(tmp_path / "plain", seeded(Graph), lambda model, _: model(ones()).sum())
    train(tmp_path / "vmap", seeded(Graph), UNSEEN["vmap"][1])
    one, two = (Run(tmp_path / name).steps[2].whole("before") for name in ("plain", "vmap"))
    assert one == two


def test_a_gradient_that_is_there_in_a_form_nobody_reads_is_not_said_to_be_missing(tmp_path):
    for sparse in (False, True):
        train(tmp_path / str(sparse), embedding(sparse=sparse), embedded)
    result = compare(tmp_path / "False", tmp_path / "True")
    assert result.parting is None, str(result)
    assert result.notes == ("not seen in BAD, and not compared: gradient of 0.weight (sparse_coo)",)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_parameters_are_compared_in_both_parts(tmp_path, dtype):
    def run(name, by=0.0):
        model = seeded(Graph, dtype=dtype)
        with torch.no_grad():
            model.layer.weight.imag.add_(by)
        train(tmp_path / name, model, lambda model, _: model(ones(dtype=dtype)).abs().sum(), torch.optim.Adam)
        return tmp_path / name

    assert compare(run("good"), run("again")).parting is None
    found = compare(run("good"), run("other", by=0.1)).parting
    assert (found.phase, found.tensors) == ("parameters before it", ("layer.weight",))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.complex128, torch.float8_e4m3fn])
def test_the_fingerprints_of_pieces_add_up_to_that_of_the_whole(dtype):
    whole = torch.randn(12, dtype=dtype if dtype.is_complex else torch.float32).to(dtype)
    whole = whole.conj() if dtype.is_complex else whole
    scattered = torch.tensor([11, 1, 8, 3, 9])
    others = torch.tensor([0, 2, 4, 5, 6, 7, 10])
    expected = print_of("x", whole)
    raw = whole.view(torch.uint8) if dtype.itemsize == 1 else whole  # which torch can index
    for pieces in (
        [print_of("x", whole[:5]), print_of("x", whole[5:], 5)],
        [print_of("x", raw[index].view(dtype), index=index) for index in (scattered, others)],
    ):
        found = pieces[0] + pieces[1]
        assert (found.numel, found.exact, found.coarse) == (expected.numel, expected.exact, expected.coarse)
        assert (*found.signed, found.squares) == pytest.approx((*expected.signed, expected.squares))
    size = whole.to(torch.complex128 if dtype.is_complex else torch.float64).abs().square().sum().item()
    assert expected.squares == pytest.approx(size)
    assert len(expected.signed) == SIGNS


def test_a_float8_buffer_has_a_fingerprint(tmp_path):
    kept = torch.tensor([1.0, -0.5, 3.0]).to(torch.float8_e4m3fn)
    train(tmp_path / "run", seeded(Graph, kept), lambda model, _: model(ones()).sum())
    found = Run(tmp_path / "run").steps[1].whole("buffers")["kept"]
    assert (found.numel, found.squares, found.dtype) == (3, 10.25, "float8_e4m3fn")


def test_a_buffer_without_elements_has_nothing_that_could_not_be_seen(tmp_path):
    empty = torch.empty(0, device="meta")
    train(tmp_path / "run", seeded(Graph, empty), lambda model, _: model(ones(), torch.eye(6)).sum())
    assert Run(tmp_path / "run").unseen == []


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e5m2, torch.uint16, torch.bool])
def test_rows_of_any_readable_kind_have_hashes_that_tell_them_apart(dtype):
    values = torch.tensor([[0, 1], [1, 0], [1, 1]])
    rows = rows_of([torch.complex(ones(3, 2), values.float()) if dtype.is_complex else values.to(dtype)])
    assert len(set(rows)) == 3


def run_with(folder, **settings):
    train(
        folder,
        seeded(Graph),
        lambda model, _: model(ones()).square().mean(),
        torch.optim.Adam,
        foreach=False,
        **settings,
    )
    return folder


@pytest.mark.parametrize("lr", [torch.tensor(1e-3), torch.tensor([1e-3])])
def test_settings_in_tensors_are_those_in_numbers(tmp_path, lr):
    numbers = run_with(tmp_path / "numbers", lr=1e-3, betas=(0.9, 0.99))
    tensors = run_with(tmp_path / "tensors", lr=lr, betas=(torch.tensor(0.9), torch.tensor(0.99)))
    assert compare(numbers, tensors).parting is None
    settings = json.loads((tensors / "rank-0.json").read_text())["steps"][0]["settings"]["layer.weight"]
    assert settings["betas"] == pytest.approx([0.9, 0.99])


@pytest.mark.parametrize("other", [{"lr": torch.tensor(1.00001e-3)}, {"betas": (0.9, 0.9901)}])
def test_other_settings_are_named_even_where_they_are_close(tmp_path, other):
    right = {"lr": 1e-3, "betas": (0.9, 0.99)}
    found = compare(run_with(tmp_path / "good", **right), run_with(tmp_path / "bad", **{**right, **other})).parting
    assert found.phase == "settings of the optimizer"
    assert found.measured.startswith(f"{next(iter(other))} is ")


def fake(model):
    with FakeTensorMode(allow_non_fake_inputs=True):
        model(ones())


TRACERS = {
    "traced": lambda model: torch.jit.trace(model, ones()),
    "exported": lambda model: torch.export.export(model, (ones(),)),
    "fake": fake,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", TRACERS)
def test_a_model_that_is_traced_within_the_steps_has_the_fingerprints_of_one_that_is_not(tmp_path, how):
    def loss(model, _, trace=TRACERS[how]):
        trace(model)
        return model(ones()).sum()

    train(tmp_path / "plain", seeded(Graph), lambda model, _: model(ones()).sum())
    train(tmp_path / "traced", seeded(Graph), loss)
    result = compare(tmp_path / "plain", tmp_path / "traced")
    assert (result.parting, result.notes) == (None, ())


def test_a_tensor_without_elements_of_its_own_cannot_be_read():
    with FakeTensorMode():
        assert unreadable(ones()) == "fake"


COMPILED = """
import sys, torch, zerolab
from torch import nn
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
if sys.argv[2] == "compiled":
    compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with zerolab.recording(sys.argv[1], steps=(1, 2), fingerprints=True, times_only=True):
    if sys.argv[2] == "pipeline":
        from torch.distributed.pipelining import SplitPoint, pipeline
        compiled = pipeline(model, mb_args=(torch.ones(2, 4),), split_spec={"2": SplitPoint.BEGINNING}) and model
    for _ in range(3):
        compiled(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["compiled", "pipeline"])
def test_torchs_compiler_leaves_what_takes_fingerprints_alone(tmp_path, how):
    command = [sys.executable, "-c", COMPILED, str(tmp_path / "run.json"), how]
    subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    [file] = (tmp_path / "run.json.fingerprints").iterdir()
    assert len(json.loads(file.read_text())["steps"]) == 2
