"""What an answer holds outside of torch is counted on each of its lines, whatever it lies in."""

import weakref

import numpy as np
import pytest
import torch

from zerolab.exercises.harness.outside import memory_outside_of_torch

MEGABYTE = 2**20
KEPT = np.zeros(MEGABYTE, np.uint8)  # from before the answer runs


def highest(answer):
    with memory_outside_of_torch(answer) as outside:
        answer()
    return outside.highest


def array():
    held = np.zeros(MEGABYTE, np.uint8)
    return held


def view():
    held = np.zeros((2, MEGABYTE // 2), np.uint8)[0]
    return held


def numbers():
    held = [float(number) for number in range(MEGABYTE // 32)]
    return held


def text():
    held = {"a": b"x" * MEGABYTE}
    return held


def view_of_bytes():
    held = np.frombuffer(bytearray(MEGABYTE), np.uint8)[:10]
    return held


def freed_at_once():
    held = np.zeros(MEGABYTE, np.uint8)
    del held


def in_an_attribute():
    in_an_attribute.held = np.zeros(MEGABYTE, np.uint8)


def in_a_helpers_caller():
    def helper():
        small = 0
        return small

    held = np.zeros(MEGABYTE, np.uint8)
    helper()
    return held


SEEN = [array, view, numbers, text, view_of_bytes, freed_at_once, in_an_attribute, in_a_helpers_caller]


@pytest.mark.parametrize("answer", SEEN)
def test_a_megabyte_is_seen_wherever_it_lies(answer):
    assert MEGABYTE <= highest(answer) < 1.3 * MEGABYTE


def test_a_tensors_memory_and_what_was_there_before_are_not_counted():
    def answer():
        tensor = torch.zeros(MEGABYTE)
        shown = tensor.numpy()
        module, old = np, KEPT
        return shown, module, old

    assert highest(answer) < 1000


def test_what_an_answer_deletes_is_gone_on_its_next_line():
    seen = []

    def answer():
        tensor = torch.zeros(4)
        reference = weakref.ref(tensor)
        [len(tensor) for _ in range(2)]
        del tensor
        seen.append(reference())

    highest(answer)
    assert seen == [None]


def test_a_loop_that_fills_a_list_is_not_slowed_down_with_its_length():
    def answer():
        held = []
        number = 0.0
        while number < 20_000:
            held.append(number)
            number += 1
        return held

    with memory_outside_of_torch(answer) as outside:
        looks = []
        held = outside._held
        outside._held = lambda frames: looks.append(1) or held(frames)
        answer()
    assert outside.highest > 400_000
    assert len(looks) < 2000
