"""What an answer sets in torch is gone after it, and it computes on one thread."""

import torch

from zerolab.exercises.harness.settings import settings_restored


def test_an_answer_computes_on_one_thread_and_what_it_sets_in_torch_is_as_before_again():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with settings_restored():
            assert torch.get_num_threads() == 1
            torch.set_num_threads(2)
            torch.set_default_dtype(torch.float64)
            torch.set_default_device("meta")
            torch.set_grad_enabled(False)
        assert torch.get_num_threads() == 3
        assert torch.ones(1, requires_grad=True).mul(2).requires_grad
        assert (torch.ones(1).dtype, torch.ones(1).device.type) == (torch.float32, "cpu")
    finally:
        torch.set_num_threads(before)
