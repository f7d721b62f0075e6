import threading
from types import SimpleNamespace

import pytest
import torch

from zerolab.recording.ledger import ACTIVATIONS, GRADIENTS, OTHER, PARAMETERS, Ledger


@pytest.fixture
def ledger():
    return Ledger()


def live(ledger):
    ledger.settle()
    return sum(ledger.host.live)


def test_a_storage_counts_once_however_many_tensors_show_it(ledger):
    tensor = torch.zeros(10)
    for view in (tensor, tensor[2:], tensor.view(2, 5)):
        ledger.see(view)
    assert live(ledger) == 40


def test_a_storage_leaves_when_its_last_view_does(ledger):
    tensor = torch.zeros(10)
    ledger.see(tensor)
    view = tensor[2:]
    del tensor
    assert live(ledger) == 40
    del view
    assert live(ledger) == 0


def test_a_storage_that_another_thread_drops_leaves_too(ledger):
    holder = SimpleNamespace(tensor=torch.zeros(10))
    ledger.see(holder.tensor)
    thread = threading.Thread(target=lambda: delattr(holder, "tensor"))
    thread.start()
    thread.join()
    assert live(ledger) == 0


@pytest.mark.parametrize("within", ["a thread", "a thread's own backward"])
def test_another_thread_leaves_the_adding_up_to_the_recorders(ledger, within):
    leaf = torch.zeros(1, requires_grad=True)
    leaf.register_hook(lambda _: ledger.settle())
    ledger.see(torch.zeros(10))
    thread = threading.Thread(target=ledger.settle if within == "a thread" else leaf.sum().backward)
    thread.start()
    thread.join()
    assert ledger.host.total == 40
    assert live(ledger) == 0


def test_an_address_that_lives_again_is_another_storage(ledger):
    for _ in range(100):
        ledger.see(torch.zeros(10))
    assert live(ledger) == 0


def test_a_resized_storage_keeps_its_category_and_flat(ledger):
    tensor = torch.zeros(10)
    ledger.assign(tensor, PARAMETERS, "blocks.0")
    storage = tensor.untyped_storage()
    storage.resize_(0)
    assert ledger.resized(storage) == "blocks.0"
    assert ledger.host.live[PARAMETERS] == 0
    storage.resize_(80)
    ledger.resized(storage)
    assert ledger.host.live[PARAMETERS] == 80


def test_a_peak_that_a_resize_makes_is_called_that_whether_the_storage_was_seen_before_or_not(ledger):
    seen, unseen = torch.zeros(10), torch.empty(0)
    for tensor in (seen, unseen):
        ledger.see(tensor)
        ledger.operation = "aten.mm.default"
        tensor.untyped_storage().resize_(80)
        ledger.resized(tensor.untyped_storage())
        assert ledger.host.peak_operation == "resize_"


def test_the_peak_remembers_what_a_storage_turned_out_to_be(ledger):
    ledger.category = ACTIVATIONS
    gradient, temporary = torch.zeros(10), torch.zeros(5)
    ledger.see(gradient)
    ledger.see(temporary)
    del temporary
    ledger.assign(gradient, GRADIENTS, None)
    assert ledger.host.peak_total == 60
    assert ledger.host.peak[GRADIENTS] == 40
    assert ledger.host.peak[ACTIVATIONS] == 20


def test_the_peak_is_not_changed_by_what_came_after_it(ledger):
    first = torch.zeros(10)
    ledger.see(first)
    ledger.settle()
    del first
    second = torch.zeros(5)
    ledger.see(second)
    ledger.assign(second, GRADIENTS, None)
    assert ledger.host.peak[GRADIENTS] == 0
    assert ledger.host.peak[OTHER] == 40


def test_bytes_that_only_pass_count_at_the_peak_and_nowhere_else(ledger):
    tensor = torch.zeros(10)
    ledger.see(tensor)
    ledger.count_temporary("aten.div.Tensor", 12)
    assert ledger.host.peak_total == 52
    assert live(ledger) == 40
