"""Answers as learners write them: unusual right ones pass, plausible wrong ones do not, whatever is drawn."""

import copy
import inspect
import random

import numpy as np
import pytest
import torch
from answered import answers_to, exercises_with_answers, said_on_ranks

from zerolab import Cluster, exercises, models
from zerolab.exercises.harness.plain import listed, plain
from zerolab.exercises.harness.sharded import mean_error
from zerolab.exercises.harness.testbed import draw

SEEDS = range(8)
FUNCTIONS = [name for name in exercises.names() if not exercises.load(name).targets.on_ranks]

# Of the answers on ranks, those that the check has once misjudged; the others are tried by hand when it changes. None
# leaves an exchange under way: they share ranks, and the next one would get its messages.
MISJUDGED = {
    "all-reduce-of-two": ["wrong_a_numpy_copy_of_the_flat", "wrong_a_list_of_all_numbers"],
    "clip-shards": ["wrong_a_numpy_copy_of_ten_parts", "wrong_in_new_memory"],
    "reduce-scatter-by-hand": [
        "right_by_a_sum_over_rows",
        "wrong_junk_of_twenty_parts",
        "wrong_junk_before_the_first_message",
        "wrong_junk_as_numpy",
    ],
    "ddp-average": [
        "right_over_two_halves",
        "right_under_no_grad",
        "right_one_optimizer_for_each_half",
        "wrong_divided_by_a_fixed_four",
        "wrong_divided_by_a_fixed_three",
        "wrong_a_second_gradient",
        "wrong_keeps_all_gradients_as_numpy",
        "wrong_calls_the_shipped_solution",
    ],
    "zero1-average": [
        "right_with_a_master_copy",
        "right_decorated_with_no_grad",
        "right_add_param_group",
        "right_leaves_torch_in_float64",
        "wrong_updates_a_copy",
        "wrong_whole_state_as_numpy",
        "wrong_whole_state_as_lists",
        "wrong_whole_state_in_a_dict_of_a_helper",
        "wrong_returns_the_parameters",
        "wrong_calls_the_shipped_solution",
        "wrong_loads_the_shipped_solution",
        "wrong_calls_a_solution_imported_above",
    ],
    "zero2-free": [
        "right_with_master_copies",
        "right_add_param_group",
        "right_one_optimizer_for_each_unit",
        "wrong_updates_copies",
        "wrong_gradients_as_numpy",
    ],
    "last-whole": ["right_as_a_tensor_of_one_element"],
    "matrix-owners": ["wrong_every_rank_updates", "wrong_a_dict", "wrong_all_end_to_end"],
    "mend-loop": [
        "right_a_list_with_the_log_as_a_tensor",
        "wrong_outputs_kept_as_numpy",
        "wrong_outputs_kept_as_lists",
        "wrong_own_log",
        "wrong_log_of_all_micro_batches",
        "wrong_largest_with_its_sign",
        "wrong_model_only_returned",
    ],
    "next-scale": ["wrong_largest_of_all_scales"],
    "product": ["right_as_a_number"],
    "read-rows": ["right_from_a_memory_map", "wrong_a_view", "wrong_a_view_of_a_copy", "wrong_an_array_of_numpys"],
    "shard-stack": [
        "right_next_block_ahead",
        "wrong_blocks_only",
        "wrong_returns_the_blocks",
        "wrong_on_rank_0_alone",
    ],
    "zero3-forward": [
        "right_by_torchs_own_all_gather",
        "right_one_unit_ahead",
        "wrong_without_allocating",
        "wrong_leaves_the_last_unit_out",
    ],
    "zero3-backward": ["right_reduces_while_the_next_is_gathered", "wrong_first_to_last"],
    "zero3-train": [
        "right_under_no_grad",
        "right_one_optimizer_for_each_unit",
        "wrong_everybody_cuts_the_first_shard",
        "wrong_whole_parameters_as_numpy",
    ],
    "ddp-engine": [
        "wrong_reduce_returns_nothing",
        "wrong_reduce_returns_the_gradient",
        "wrong_own_returns_nothing",
        "wrong_keep_returns_the_mean",
        "wrong_a_part_is_owned_and_the_whole_mean_kept",
        "wrong_keeps_gradients_as_numpy",
        "wrong_derived_from_the_shipped_solution",
    ],
    "clinic-apart": ["wrong_gathers_its_own_part"],
    "clinic-growing": ["right_lets_go_on_the_line_of_the_step", "wrong_plots_this_ranks_parts"],
    "clinic-stuck": [
        "right_all_exchanges_started_then_waited_for",
        "right_zeros_for_every_unit_beforehand",
        "right_zeros_for_what_is_missing",
        "wrong_zeros_as_large_as_the_last_unit",
        "wrong_zeros_as_large_as_the_unit_before",
        "wrong_zeros_on_rank_1_only",
    ],
    "clinic-too-fast": ["right_parts_in_new_tensors"],
    "clinic-unmoved": ["right_all_at_once"],
    "ward-stands-still": ["wrong_no_check"],
}

# Those that pass but for what is drawn on so many ranks.
PASSING_ELSEWHERE = [
    ("clinic-unmoved", 3, "wrong_six_without_the_rest"),
    ("gather-rows", 3, "wrong_a_row_too_many_where_n_divides_them"),
    ("log-once", 4, "wrong_own_mean_by_its_tokens"),
    pytest.param("move-shards", 4, "wrong_neighbours_only", marks=pytest.mark.slow),  # it hangs
    ("move-shards", 4, "wrong_begins_beyond_the_end"),
    ("next-scale", 1, "wrong_by_the_largest"),
    ("next-scale", 1, "wrong_by_inf_or_nan"),
    ("next-scale", 4, "wrong_by_the_largest_in_size"),
    ("read-rows", 2, "wrong_loads_all_bytes"),
    ("read-rows", 2, "wrong_reads_all_bytes"),
    ("scales-across-ranks", 3, "wrong_as_if_shards_were_alike"),
    ("two-levels", 4, "wrong_groups_consistently_in_each_others_place"),
    ("scales-across-ranks", 4, "wrong_a_block_more_where_none_is_begun"),
]

# What lies about for a moment is the most that a rank holds on one rank alone; and there is nobody to send to.
PASSING_ON_MORE = [
    ("keep-shards", "right_alone_without_an_exchange"),
    ("zero1-average", "right_into_a_shard_of_each_step"),
    ("zero1-average", "right_into_grad"),
    ("zero2-free", "right_by_way_of_a_second_shard"),
]


def test_every_exercise_has_answers():
    assert exercises_with_answers() == exercises.names()
    for name in exercises.names():
        answers = answers_to(name)
        assert sum(answer.startswith("right_") for answer in answers) >= 5, name
        assert sum(answer.startswith("wrong_") for answer in answers) >= 10, name


@pytest.mark.parametrize("exercise_id", FUNCTIONS)
def test_a_function_is_judged_the_same_whatever_is_drawn(exercise_id):
    exercise = exercises.load(exercise_id)
    runs = [next(exercise.targets.runs(exercise, 1, seed, 1.0)) for seed in SEEDS]
    for name, answer in answers_to(exercise_id).items():
        accepted = [not _why(exercise, answer, run.arguments[0]) for run in runs]
        assert set(accepted) == {name.startswith("right_")}, f"{name}: {accepted}"


@pytest.mark.slow
@pytest.mark.parametrize(("exercise_id", "name"), [(key, name) for key, names in MISJUDGED.items() for name in names])
def test_what_was_misjudged_once_is_judged_as_what_it_is(exercise_id, name, two_ranks):
    answer = answers_to(exercise_id)[name]
    said = said_on_ranks(exercises.load(exercise_id), answer, two_ranks)
    if name.startswith("right_"):
        assert said == ""
    else:
        assert inspect.cleandoc(answer.__doc__).split("\n\nArgs:")[0] in said, said


@pytest.mark.parametrize(("exercise_id", "world_size", "name"), PASSING_ELSEWHERE)
def test_what_one_number_of_ranks_shows_is_refused_whatever_is_drawn(exercise_id, world_size, name):
    exercise, answer = exercises.load(exercise_id), answers_to(exercise_id)[name]
    with Cluster(world_size=world_size, device="cpu", timeout=1) as cluster:
        said = [said_on_ranks(exercise, answer, cluster, seed) for seed in range(3)]
    assert all(answer.__doc__ in why for why in said), said


@pytest.mark.parametrize(("exercise_id", "name"), PASSING_ON_MORE)
def test_what_passes_on_more_ranks_passes_on_one(exercise_id, name):
    with Cluster(world_size=1, device="cpu") as cluster:
        assert said_on_ranks(exercises.load(exercise_id), answers_to(exercise_id)[name], cluster) == ""


def test_a_collective_that_depends_on_what_a_rank_has_hangs_on_four_ranks():
    """On these a shard is all zeros; on fewer it is none."""
    draws = [exercises.load("clip-shards").targets.draw(dice, size) for dice, size in _dice((2, 3, 4))]
    assert [sum(not shard.any() for shard, _ in arguments) for arguments in draws] == [0, 0, 1]


def test_each_op_is_alone_in_a_profile_where_its_cost_beside_its_buffer_tells_it_from_the_others():
    """This is what to look for in the picture, which shows no more than three ops in full."""
    targets = exercises.load("profile-traffic").targets
    for seed in SEEDS:
        inputs = [targets._at(edge, random.Random(seed)) for edge in targets.edges]
        alone = {drawn["profile"][0][0] for drawn in inputs if len(drawn["profile"]) == 1 and drawn["world_size"] > 2}
        assert alone == {"all_reduce", "reduce_scatter", "all_gather"}


def test_the_very_last_save_is_nobodys():
    """Who takes the place of a maximum among nothing but zeros is else told to take the last save of any rank."""
    draws = [exercises.load("last-whole").targets.draw(random.Random(seed), 3) for seed in SEEDS]
    assert not any(written[-1] for arguments in draws for (written,) in arguments)


def test_two_saves_from_before_the_last_whole_one_are_not_whole():
    """Who counts the saves that all have is else right, or as far off as who takes the last but one."""
    draws = [
        exercises.load("last-whole").targets.draw(random.Random(seed), size) for seed in SEEDS for size in (1, 2, 4)
    ]
    for arguments in draws:
        everywhere = np.min([written for (written,) in arguments], axis=0)
        assert (everywhere[: everywhere.nonzero()[0][-1]] == 0).sum() >= 2


def test_on_two_ranks_the_first_gradient_of_ward_drifts_is_not_to_be_clipped_whatever_is_drawn():
    """Who always scales is refused there only; a run of it is among the exercise's own wrong answers."""
    for seed in SEEDS:
        model, drawn = models.build("mlp-odd"), exercises.load("ward-drifts").targets.draw(random.Random(seed), 2)
        mean_error(model, [(torch.from_numpy(rows[0]), torch.from_numpy(wanted[0])) for rows, wanted in drawn])
        assert torch.cat([weight.grad.flatten() for weight in model.parameters()]).norm() < 0.125


def test_every_rank_leaves_out_a_unit_of_its_own():
    for seed, world_size in [(seed, size) for seed in range(20) for size in (2, 3, 4)]:
        plan = draw(seed, world_size, units=True, batches="skipping")
        skipped = [plan.skipped(1, rank) for rank in range(world_size)]
        assert len(set(skipped)) == world_size
        assert not {None, 0, len(plan.widths) - 2} & set(skipped)  # neither the first nor the last


def _dice(sizes):
    return [(random.Random(size), size) for size in sizes]


def _why(exercise, answer, inputs):
    """What the check says of the answer for these inputs; empty if nothing."""
    try:
        given = [listed(plain(answer(*each.values()))) for each in copy.deepcopy(inputs)]
    except Exception as error:  # noqa: BLE001  an answer may raise anything
        return repr(error)
    return exercise.targets._judge(exercise, inputs, given)
