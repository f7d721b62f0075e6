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
    """bytes; the target is"""
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
    """right is"""
    inside, across = _groups(per_node)
    reduce_scatter(flat, across).wait()
    dist.all_reduce(flat.chunk(per_node)[dist.get_rank() % per_node], group=inside)
    all_gather(flat, across).wait()


def wrong_part_by_the_node(flat, per_node):
    """right is"""
    inside, across = _groups(per_node)
    reduce_scatter(flat, inside).wait()
    dist.all_reduce(flat.chunk(per_node)[dist.get_rank() // per_node], group=across)
    all_gather(flat, inside).wait()


def wrong_mean(flat, per_node):
    """right is"""
    inside, across = _groups(per_node)
    reduce_scatter(flat, inside).wait()
    dist.all_reduce(flat.chunk(per_node)[dist.get_rank() % per_node], group=across)
    all_gather(flat, inside).wait()
    flat /= dist.get_world_size()


def wrong_in_a_new_tensor(flat, per_node):
    """right is"""
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
