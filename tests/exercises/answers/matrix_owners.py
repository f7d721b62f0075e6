def _largest_first(weights):
    loads, owners = [0] * dist.get_world_size(), {}
    for place in sorted(range(len(weights)), key=lambda place: weights[place].numel(), reverse=True):
        owners[place] = min(range(len(loads)), key=loads.__getitem__)
        loads[owners[place]] += weights[place].numel()
    return owners


def _with(owners, weights, gradients, update):
    for place, gradient in enumerate(gradients):
        dist.reduce(gradient, dst=owners[place])
        if owners[place] == dist.get_rank():
            update(weights[place], gradient / dist.get_world_size())
    for place, weight in enumerate(weights):
        dist.broadcast(weight, src=owners[place])
    return weights


def right_with_a_dict(weights, gradients, update):
    return _with(_largest_first(weights), weights, gradients, update)


def right_counted_from_the_last_rank(weights, gradients, update):
    last = dist.get_world_size() - 1
    return _with({place: last - owner for place, owner in _largest_first(weights).items()}, weights, gradients, update)


def right_without_dividing(weights, gradients, update):
    owners = _largest_first(weights)
    for place, gradient in enumerate(gradients):
        dist.reduce(gradient, dst=owners[place])
        if owners[place] == dist.get_rank():
            update(weights[place], gradient)  # an orthogonal matrix is the same for a gradient of any length
    for place, weight in enumerate(weights):
        dist.broadcast(weight, src=owners[place])
    return weights


def right_matrix_by_matrix(weights, gradients, update):
    owners = _largest_first(weights)
    for place in range(len(weights)):
        dist.reduce(gradients[place], dst=owners[place])
        if dist.get_rank() == owners[place]:
            update(weights[place], gradients[place].div_(dist.get_world_size()))
        dist.broadcast(weights[place], src=owners[place])
    return weights


def right_all_started_then_waited_for(weights, gradients, update):
    owners = _largest_first(weights)
    works = [dist.reduce(each, dst=owners[place], async_op=True) for place, each in enumerate(gradients)]
    for place, work in enumerate(works):
        work.wait()
        if owners[place] == dist.get_rank():
            update(weights[place], gradients[place] / dist.get_world_size())
    for work in [dist.broadcast(each, src=owners[place], async_op=True) for place, each in enumerate(weights)]:
        work.wait()
    return weights


def wrong_in_turns(weights, gradients, update):
    """with the largest matrix first no rank has more than"""
    return _with([place % dist.get_world_size() for place in range(len(weights))], weights, gradients, update)


def wrong_in_runs(weights, gradients, update):
    """with the largest matrix first no rank has more than"""
    size = -(-len(weights) // dist.get_world_size())
    return _with([place // size for place in range(len(weights))], weights, gradients, update)


def wrong_rank_0_owns_all(weights, gradients, update):
    """with the largest matrix first no rank has more than"""
    return _with([0] * len(weights), weights, gradients, update)


def wrong_as_they_come(weights, gradients, update):
    """with the largest matrix first no rank has more than"""
    loads, owners = [0] * dist.get_world_size(), []
    for weight in weights:
        owners.append(loads.index(min(loads)))
        loads[owners[-1]] += weight.numel()
    return _with(owners, weights, gradients, update)


def wrong_the_last_rank_owns_all(weights, gradients, update):
    """with the largest matrix first no rank has more than"""
    return _with([dist.get_world_size() - 1] * len(weights), weights, gradients, update)


def wrong_no_reduction(weights, gradients, update):
    """updates from the owner's own gradient"""
    owners = _largest_first(weights)
    for place, gradient in enumerate(gradients):
        if owners[place] == dist.get_rank():
            update(weights[place], gradient)
    for place, weight in enumerate(weights):
        dist.broadcast(weight, src=owners[place])
    return weights


def wrong_everybody_updates(weights, gradients, update):
    """made 14 updates of 7 matrices"""
    for weight, gradient in zip(weights, gradients):
        dist.all_reduce(gradient)
        update(weight, gradient / dist.get_world_size())
    return weights


def wrong_nothing_comes_back(weights, gradients, update):
    """keeps what it updates to itself"""
    owners = _largest_first(weights)
    for place, gradient in enumerate(gradients):
        dist.reduce(gradient, dst=owners[place])
        if owners[place] == dist.get_rank():
            update(weights[place], gradient / dist.get_world_size())
    return weights


def wrong_returns_nothing(weights, gradients, update):
    """returned nothing"""
    _with(_largest_first(weights), weights, gradients, update)


def wrong_sends_gradients_back_in_place_of_weights(weights, gradients, update):
    """right is"""
    owners = _largest_first(weights)
    for place, gradient in enumerate(gradients):
        dist.reduce(gradient, dst=owners[place])
        dist.broadcast(gradient, src=owners[place])
        weights[place] -= 0.1 * gradient / dist.get_world_size()
    return weights


def wrong_updates_before_the_sum(weights, gradients, update):
    """updates from the owner's own gradient"""
    owners = _largest_first(weights)
    for place, gradient in enumerate(gradients):
        if owners[place] == dist.get_rank():
            update(weights[place], gradient / dist.get_world_size())
        dist.reduce(gradient, dst=owners[place])
    for place, weight in enumerate(weights):
        dist.broadcast(weight, src=owners[place])
    return weights


def wrong_every_rank_updates(weights, gradients, update):
    """made 14 updates of 7 matrices"""
    owners = _largest_first(weights)
    for place, gradient in enumerate(gradients):
        dist.reduce(gradient, dst=owners[place])
        update(weights[place], gradient / dist.get_world_size())
    for place, weight in enumerate(weights):
        dist.broadcast(weight, src=owners[place])
    return weights


def wrong_a_dict(weights, gradients, update):
    """it is a dict where a list belongs"""
    return dict(enumerate(right_with_a_dict(weights, gradients, update)))


def wrong_all_end_to_end(weights, gradients, update):
    """at place 0 stands"""
    return torch.cat([weight.flatten() for weight in right_with_a_dict(weights, gradients, update)])
