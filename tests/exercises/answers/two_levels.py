def _groups(per_node):
    ranks = list(range(dist.get_world_size()))
    inside, _ = dist.new_subgroups_by_enumeration([ranks[n : n + per_node] for n in ranks[::per_node]])
    across, _ = dist.new_subgroups_by_enumeration([ranks[n::per_node] for n in range(per_node)])
    return inside, across


def right_by_names(flat, per_node):
    inside, across = _groups(per_node)
    part = len(flat) // per_node
    first = (dist.get_rank() % per_node) * part
    reduce_scatter(flat, inside).wait()
    dist.all_reduce(flat[first : first + part], group=across)
    all_gather(flat, inside).wait()


def right_by_new_group(flat, per_node):
    nodes = dist.get_world_size() // per_node
    for node in range(nodes):
        group = dist.new_group([node * per_node + place for place in range(per_node)])
        if dist.get_rank() // per_node == node:
            inside = group
    for place in range(per_node):
        group = dist.new_group([node * per_node + place for node in range(nodes)])
        if dist.get_rank() % per_node == place:
            across = group
    reduce_scatter(flat, inside).wait()
    dist.all_reduce(flat.chunk(per_node)[dist.get_rank() % per_node], group=across)
    all_gather(flat, inside).wait()


def right_with_the_ranks_in_the_group(flat, per_node):
    inside, across = _groups(per_node)
    reduce_scatter(flat, inside).wait()
    mine = flat.view(per_node, -1)[dist.get_rank(inside)]
    dist.all_reduce(mine, group=across)
    all_gather(flat, inside).wait()


def right_with_a_copy_of_the_part(flat, per_node):
    inside, across = _groups(per_node)
    reduce_scatter(flat, inside).wait()
    mine = flat.chunk(per_node)[dist.get_rank() % per_node]
    copy = mine.clone()
    dist.all_reduce(copy, group=across)
    mine.copy_(copy)
    all_gather(flat, inside).wait()


def right_waiting_late(flat, per_node):
    inside, across = _groups(per_node)
    exchange = reduce_scatter(flat, inside)
    mine = flat.chunk(per_node)[dist.get_rank() % per_node]
    exchange.wait()
    dist.all_reduce(mine, group=across, async_op=True).wait()
    all_gather(flat, inside).wait()
    return flat


def wrong_within_the_node(flat, per_node):
    """adds up within the node alone"""
    inside, _ = _groups(per_node)
    reduce_scatter(flat, inside).wait()
    all_gather(flat, inside).wait()


def wrong_not_handed_out(flat, per_node):
    """leaves the sum in this rank's part"""
    inside, across = _groups(per_node)
    reduce_scatter(flat, inside).wait()
    dist.all_reduce(flat.chunk(per_node)[dist.get_rank() % per_node], group=across)


def wrong_all_of_it_across(flat, per_node):
    """adds up the whole flat between the nodes"""
    inside, across = _groups(per_node)
    reduce_scatter(flat, inside).wait()
    dist.all_reduce(flat, group=across)
    all_gather(flat, inside).wait()


def wrong_one_level(flat, per_node):
    """started all_reduce; the target is"""
    dist.all_reduce(flat)


def wrong_one_level_in_halves(flat, per_node):
    """the target is reduce_scatter, all_reduce, all_gather"""
    reduce_scatter(flat).wait()
    all_gather(flat).wait()


def wrong_two_all_reduces(flat, per_node):
    """started 2 all_reduce"""
    inside, across = _groups(per_node)
    dist.all_reduce(flat, group=inside)
    dist.all_reduce(flat, group=across)


def wrong_levels_in_each_others_place(flat, per_node):
    """takes ranks of different nodes for a node"""
    inside, across = _groups(per_node)
    reduce_scatter(flat, across).wait()
    dist.all_reduce(flat.chunk(per_node)[dist.get_rank() % per_node], group=inside)
    all_gather(flat, across).wait()


def wrong_part_by_the_node(flat, per_node):
    """takes the part of its node's number"""
    inside, across = _groups(per_node)
    reduce_scatter(flat, inside).wait()
    dist.all_reduce(flat.chunk(per_node)[dist.get_rank() // per_node], group=across)
    all_gather(flat, inside).wait()


def wrong_mean(flat, per_node):
    """Each number is 0.25 times the right one."""
    inside, across = _groups(per_node)
    reduce_scatter(flat, inside).wait()
    dist.all_reduce(flat.chunk(per_node)[dist.get_rank() % per_node], group=across)
    all_gather(flat, inside).wait()
    flat /= dist.get_world_size()


def wrong_in_a_new_tensor(flat, per_node):
    """It is `flat` as your function got it: the result has to be written into it."""
    inside, across = _groups(per_node)
    copy = flat.clone()
    reduce_scatter(copy, inside).wait()
    dist.all_reduce(copy.chunk(per_node)[dist.get_rank() % per_node], group=across)
    all_gather(copy, inside).wait()
    return copy


def wrong_gathers_before_it_has_waited(flat, per_node):
    """never waited for"""
    inside, across = _groups(per_node)
    reduce_scatter(flat, inside).wait()
    dist.all_reduce(flat.chunk(per_node)[dist.get_rank() % per_node], group=across)
    all_gather(flat, inside)


def wrong_groups_consistently_in_each_others_place(flat, per_node):
    """started reduce_scatter in the group [0, 2]; it is due in [0, 1]"""
    across, inside = _groups(per_node)
    nodes = dist.get_world_size() // per_node
    reduce_scatter(flat, inside).wait()
    dist.all_reduce(flat.chunk(nodes)[dist.get_rank() // per_node], group=across)
    all_gather(flat, inside).wait()


def wrong_nothing_is_added_up_in_the_node(flat, per_node):
    """`reduce_scatter` comes first"""
    inside, across = _groups(per_node)
    dist.all_reduce(flat.chunk(per_node)[dist.get_rank() % per_node], group=across)
    all_gather(flat, inside).wait()


def wrong_the_part_of_this_rank_among_all(flat, per_node):
    """cuts the flat into as many parts as there are ranks"""
    inside, across = _groups(per_node)
    reduce_scatter(flat, inside).wait()
    dist.all_reduce(flat.chunk(dist.get_world_size())[dist.get_rank()], group=across)
    all_gather(flat, inside).wait()


def wrong_parts_of_all_ranks_added_up(flat, per_node):
    """adds up parts that are not the same"""
    inside, _ = _groups(per_node)
    reduce_scatter(flat, inside).wait()
    dist.all_reduce(flat.chunk(per_node)[dist.get_rank() % per_node])
    all_gather(flat, inside).wait()


def wrong_a_copy_of_the_part(flat, per_node):
    """leaves the sum over the nodes in a copy of the part"""
    inside, across = _groups(per_node)
    reduce_scatter(flat, inside).wait()
    dist.all_reduce(flat.chunk(per_node)[dist.get_rank() % per_node].clone(), group=across)
    all_gather(flat, inside).wait()


def right_by_a_mesh(flat, per_node):
    from torch.distributed.device_mesh import init_device_mesh

    shape = dist.get_world_size() // per_node, per_node
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("across", "inside"))
    inside = mesh["inside"].get_group()
    reduce_scatter(flat, inside).wait()
    dist.all_reduce(flat.view(per_node, -1)[dist.get_rank(inside)], group=mesh["across"].get_group())
    all_gather(flat, inside).wait()
