"""Which GPUs ranks take, and how many ranks there may be. Without a GPU here, drivers answer from recordings."""

import os
import re

import drivers
import pytest
import torch

from zerolab import Cluster
from zerolab.runtime import devices, machine

GB = 10**9


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """`driver(cards, topology="")` makes this the box whose driver lists them; returns what zerolab reads."""

    def install(cards, topology=""):
        drivers.install(tmp_path, monkeypatch, cards, topology)
        return machine.cards()

    return install


def free(cards, world_size=None):
    return devices.free_gpus(list(range(len(cards))), dict(enumerate(cards)), world_size)


def test_cards_are_read_with_their_memory_in_bytes_and_their_modes(driver):
    first, second = driver([*drivers.several(drivers.H200, 1, free=143158), drivers.L40S.format(index=1)])
    assert first == {
        "index": 0,
        "uuid": "GPU-0aaaaaaa-0000-0000",
        "name": "NVIDIA H200",
        "memory_total": 143771 * 2**20,
        "memory_free": 143158 * 2**20,
        "compute_mode": "Default",
        "mig": "Disabled",
        "capability": "9.0",
    }
    assert (second["name"], second["mig"]) == ("NVIDIA L40S", "[N/A]")


@pytest.mark.parametrize(
    ("chosen", "seen"),
    [
        ("1", [1]),
        ("", []),
        ("2,0", [2, 0]),
        ("GPU-1aaa", [1]),
        ("0,7,1", [0]),
        ("-1", []),
        ("GPU-9", []),
        ("1,0,1", []),
        ("GPU-", []),
    ],
)
def test_visible_devices_are_respected_in_their_order_and_left_alone(driver, monkeypatch, chosen, seen):
    driver(drivers.several(drivers.H200, 3, free=143158))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert [card["index"] for card in machine.cards()] == seen
    with Cluster(1, device="cpu") as cluster:
        assert cluster.run(os.environ.get, "CUDA_VISIBLE_DEVICES") == [chosen]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == chosen


def test_without_a_driver_or_with_one_that_fails_there_are_no_cards(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.cards() == []
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9")
    (tmp_path / "nvidia-smi").chmod(0o700)
    assert machine.cards() == []


def test_links_between_cards_are_read_from_the_drivers_matrix(driver):
    assert machine.links(drivers.DGX_A100) == {"NV12": ["0-1", "0-2", "1-2"]}
    assert machine.links(drivers.TWO_GEFORCES) == {"PHB": ["0-1"]}
    assert machine.links("") == {}


def test_a_gpu_is_taken_on_its_own_accord_only_with_more_than_two_gigabytes_free_for_each_of_its_ranks(driver):
    roomy = driver(drivers.several(drivers.RTX, 2, free=7571, mode="Default"))
    assert free(roomy) == ((0, 1), ())
    assert free(roomy, world_size=6) == ((0, 1), ()), "three ranks need 6 GB of 7.9"
    gpus, notes = free(roomy, world_size=8)
    assert gpus == ()
    assert notes == (
        "GPU 0, NVIDIA GeForce RTX 2080 SUPER, has 7.9 GB free of the 8 GB that its ranks need: not used",
        "GPU 1, NVIDIA GeForce RTX 2080 SUPER, has 7.9 GB free of the 16 GB that its ranks need: not used",
        "so the ranks compute on the CPU; device='cuda' insists",
    )


def test_a_card_that_somebody_else_fills_is_left_out_and_the_others_are_used(driver):
    cards = driver([*drivers.several(drivers.H200, 3, free=143158)[:2], drivers.H200.format(index=2, free=1800)])
    gpus, notes = free(cards)
    assert gpus == (0, 1)
    assert notes == ("GPU 2, NVIDIA H200, has 1.9 GB free of the 2 GB that its ranks need: not used",)


EXCLUSIVE = drivers.RTX.format(index="{index}", free=7571, mode="Exclusive_Process")


@pytest.mark.parametrize(
    ("card", "sentence"),
    [
        (drivers.H200_MIG, r"GPU 1, NVIDIA H200, is split into MIG slices, .*CUDA_VISIBLE_DEVICES=MIG-"),
        (
            EXCLUSIVE,
            r"GPU 1, NVIDIA GeForce RTX 2080 SUPER, is in compute mode Exclusive_Process, .*nvidia-smi -c DEFAULT",
        ),
        (
            drivers.RTX.format(index="{index}", free=7571, mode="Prohibited"),
            r"GPU 1, NVIDIA GeForce RTX 2080 SUPER, is in compute mode Prohibited, .*nvidia-smi -c DEFAULT",
        ),
    ],
)
def test_a_card_that_the_ranks_cannot_use_is_refused_by_name_and_left_out_by_auto(driver, card, sentence):
    cards = driver([drivers.H100.format(index=0), card.format(index=1)])
    with pytest.raises(ValueError, match=f"^{sentence}.*; use device='cpu', or other GPUs$"):
        devices.check_usable([0, 1], dict(enumerate(cards)), 4)
    gpus, notes = free(cards, world_size=4)
    assert gpus == (0,)
    assert re.match(sentence, notes[0])


def test_cards_in_an_exclusive_mode_are_used_where_each_has_one_rank(driver):
    cards = driver([EXCLUSIVE.format(index=index) for index in range(2)])
    devices.check_usable([0, 1], dict(enumerate(cards)), 2)
    assert free(cards) == ((0, 1), ())
    assert free(cards, world_size=2) == ((0, 1), ())
    assert free(cards, world_size=1) == ((0, 1), ())
    assert free(cards, world_size=3)[0] == (), "two of the three would share one"
    assert free(cards[:1])[0] == (), "nor do the four of a lesson share one"


def test_a_slice_that_is_the_only_gpu_is_used_by_all_ranks(driver, monkeypatch):
    driver([drivers.H200_MIG.format(index=0)])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7c1d9d6e-0000-0000-0000-000000000000")
    cards = machine.cards()
    devices.check_usable([0], dict(enumerate(cards)), 4)
    assert free(cards, world_size=4) == ((0,), ())


def test_a_full_card_that_was_asked_for_is_refused_before_anything_starts(driver):
    cards = driver([drivers.H200.format(index=0, free=900)])
    devices.check_usable([0], dict(enumerate(cards)), 3)
    sentence = r"GPU 0, NVIDIA H200, has 0\.9 GB free, and 4 ranks on it take 1\.1 GB before .*nvidia-smi.*device='cpu'"
    with pytest.raises(ValueError, match=sentence):
        devices.check_usable([0], dict(enumerate(cards)), 4)


def test_a_card_that_has_exactly_what_its_ranks_need_is_used(driver):
    (card,) = driver([drivers.H200.format(index=0, free=1024)])
    devices.check_usable([0], {0: card}, 4)
    assert free([card | {"memory_free": 8 * GB}], world_size=4) == ((0,), ())


def test_a_card_that_shares_the_main_memory_has_what_is_free_there(driver, monkeypatch):
    cards = driver([drivers.GB10.format(index=0)])
    monkeypatch.setattr(devices, "memory", lambda: (128 * GB, 100 * GB))
    assert free(cards, world_size=4) == ((0,), ())
    monkeypatch.setattr(devices, "memory", lambda: (128 * GB, 7 * GB))
    assert free(cards, world_size=4)[0] == ()


def test_zerolab_devices_choose_among_the_gpus_that_torch_sees():
    assert devices.chosen_of(4, None) == [0, 1, 2, 3]
    assert devices.chosen_of(4, (2, 0)) == [2, 0]
    assert devices.chosen_of(0, (0,)) == [], "the same setting on a box without GPUs means the CPU"
    with pytest.raises(ValueError, match="ZEROLAB_DEVICES names GPU 4, and torch sees 4 here, counted from 0"):
        devices.chosen_of(4, (0, 4))


def test_zerolab_devices_that_name_nothing_are_refused(monkeypatch):
    monkeypatch.setenv("ZEROLAB_DEVICES", "gpu0")
    with pytest.raises(ValueError, match="ZEROLAB_DEVICES is 'gpu0'; give numbers of visible GPUs such as 0,1, or cpu"):
        Cluster(1)
    monkeypatch.setenv("ZEROLAB_DEVICES", "cpu")
    with Cluster(1) as cluster:
        assert cluster.device == "cpu"


def test_max_ranks_limits_what_is_asked_for_and_what_is_the_default(monkeypatch):
    monkeypatch.setenv("ZEROLAB_MAX_RANKS", "2")
    sentence = "world_size is 3, and ZEROLAB_MAX_RANKS allows 2 on this machine; ask for fewer ranks"
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        Cluster(3, device="cpu")
    with Cluster(device="cpu") as cluster:
        assert cluster.world_size == 2
    monkeypatch.setenv("ZEROLAB_MAX_RANKS", "many")
    with pytest.raises(ValueError, match="ZEROLAB_MAX_RANKS is 'many'; give a number of ranks, such as 8"):
        Cluster(1, device="cpu")


def test_a_world_that_memory_does_not_hold_is_refused_with_both_numbers(monkeypatch):
    available = machine.memory()[1] / GB
    with pytest.raises(ValueError, match=r"so many ranks need 6000\.4 GB of main memory") as caught:
        Cluster(100_000, device="cpu")
    told = float(re.search(r"and ([\d.]+) GB are free", str(caught.value))[1])
    assert told == pytest.approx(available, abs=0.5)
    fit = int(re.search(r"at most (\d+) fit$", str(caught.value))[1])
    assert devices.BASE_BYTES + fit * devices.RANK_BYTES <= told * GB * 1.01
    monkeypatch.setattr(devices, "memory", lambda: (GB, GB // 5))
    with pytest.raises(ValueError, match=r"0\.2 GB are free; free some, or use a larger machine"):
        devices.check_limits(1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
def test_on_a_gpu_ranks_compute_where_zerolab_devices_says(monkeypatch):
    monkeypatch.setenv("ZEROLAB_DEVICES", "0")
    with Cluster(2, device="cuda") as cluster:
        assert cluster.run(torch.cuda.current_device) == [0, 0]
