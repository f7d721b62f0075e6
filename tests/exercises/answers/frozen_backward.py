def _gathered(mine):
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.cat(parts)


def _goes_on(gradient, weight, through_adapter):
    return gradient @ weight + through_adapter


def _own(shards, adapters, inputs, gradient, first, goes_on=_goes_on, lowest=None):
    found = []
    lowest = first if lowest is None else lowest
    for layer in range(len(shards) - 1, lowest - 1, -1):
        (down, up), x = adapters[layer], inputs[layer]
        back = gradient @ up.T
        if layer >= first:
            found.insert(0, torch.stack([back.T @ x, down @ x.T @ gradient]))
        if layer > lowest:
            gradient = goes_on(gradient, _gathered(shards[layer]), back @ down)
    return torch.stack(found)


def _mean(gradients):
    dist.all_reduce(gradients)
    return gradients.div_(dist.get_world_size())


def right_by_autograd(shards, adapters, inputs, gradient, first):
    trained = adapters.clone().requires_grad_()
    for layer in reversed(range(first, len(shards))):
        x = inputs[layer].clone().requires_grad_()
        down, up = trained[layer]
        outputs = x @ down.T @ up
        if layer > first:
            outputs = outputs + x @ _gathered(shards[layer]).T
        outputs.backward(gradient)
        gradient = x.grad
    return _mean(trained.grad[first:].clone())


def right_all_weights_gathered_as_one(shards, adapters, inputs, gradient, first):
    needed = shards[first + 1 :].contiguous()
    weights = _gathered(needed[None]).transpose(0, 1).flatten(1, 2)
    gradients = torch.zeros_like(adapters[first:])
    for layer in reversed(range(first, len(shards))):
        (down, up), x = adapters[layer], inputs[layer]
        back = gradient @ up.T
        gradients[layer - first] = torch.stack([back.T @ x, down @ x.T @ gradient])
        if layer > first:
            gradient = gradient @ weights[layer - first - 1] + back @ down
    return _mean(gradients)


def right_a_reduction_for_each_layer(shards, adapters, inputs, gradient, first):
    gradients = _own(shards, adapters, inputs, gradient, first)
    for of_layer in gradients:
        dist.all_reduce(of_layer)
    return gradients / dist.get_world_size()


def right_reduced_to_owners_and_gathered(shards, adapters, inputs, gradient, first):
    gradients = _own(shards, adapters, inputs, gradient, first)
    parts = [part.contiguous() for part in gradients.flatten().chunk(dist.get_world_size())]
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts)
    return _gathered(mine / dist.get_world_size()).view_as(gradients)


def right_into_one_buffer(shards, adapters, inputs, gradient, first):
    width, world_size = shards.shape[2], dist.get_world_size()
    whole, gradients = torch.empty(width, width), {}
    for layer in range(len(shards) - 1, first - 1, -1):
        down, up = adapters[layer]
        gradients[layer] = torch.stack([up @ gradient.T @ inputs[layer], down @ inputs[layer].T @ gradient])
        gradients[layer] /= world_size
        if layer != first:
            dist.all_gather(list(whole.chunk(world_size)), shards[layer].contiguous())
            gradient = gradient @ (whole + up.T @ down)
    everything = torch.stack([gradients[layer] for layer in sorted(gradients)])
    dist.all_reduce(everything)
    return everything


def wrong_gathers_the_lowest_too(shards, adapters, inputs, gradient, first):
    """bytes; the target is"""
    gradients = _own(shards, adapters, inputs, gradient, first)
    _gathered(shards[first])
    return _mean(gradients)


def wrong_goes_down_to_the_bottom(shards, adapters, inputs, gradient, first):
    """bytes; the target is"""
    return _mean(_own(shards, adapters, inputs, gradient, first, lowest=0))


def wrong_what_is_frozen_passes_nothing_on(shards, adapters, inputs, gradient, first):
    """as if what is frozen passed no gradient on"""
    return _mean(_own(shards, adapters, inputs, gradient, first, lambda _gradient, _weight, adapter: adapter))


def wrong_without_gathering_at_all(shards, adapters, inputs, gradient, first):
    """as if what is frozen passed no gradient on"""
    gradients = torch.empty_like(adapters[first:])
    for layer in reversed(range(first, len(shards))):
        (down, up), x = adapters[layer], inputs[layer]
        gradients[layer - first] = torch.stack([up @ gradient.T @ x, down @ x.T @ gradient])
        gradient = gradient @ up.T @ down
    return _mean(gradients)


def wrong_forgets_the_adapters_path(shards, adapters, inputs, gradient, first):
    """leaves out what goes on through the adapters"""
    return _mean(_own(shards, adapters, inputs, gradient, first, lambda gradient, weight, _adapter: gradient @ weight))


def wrong_transposed(shards, adapters, inputs, gradient, first):
    """multiplies with the transposed weights"""

    def goes_on(gradient, weight, through_adapter):
        return torch.nn.functional.linear(gradient, weight) + through_adapter

    return _mean(_own(shards, adapters, inputs, gradient, first, goes_on))


def wrong_a_sum(shards, adapters, inputs, gradient, first):
    """returns the sum over all ranks"""
    gradients = _own(shards, adapters, inputs, gradient, first)
    dist.all_reduce(gradients)
    return gradients


def wrong_nothing_is_reduced(shards, adapters, inputs, gradient, first):
    """they are not reduced"""
    return _own(shards, adapters, inputs, gradient, first)


def wrong_the_frozen_gradient_is_reduced(shards, adapters, inputs, gradient, first):
    """bytes; the target is"""
    gradients, layers = _own(shards, adapters, inputs, gradient, first), len(shards)
    dist.all_reduce(gradient.T @ inputs[layers - 1])
    return _mean(gradients)


def wrong_the_gradient_that_goes_on_is_averaged(shards, adapters, inputs, gradient, first):
    """right is"""

    def goes_on(gradient, weight, through_adapter):
        return _mean(_goes_on(gradient, weight, through_adapter))

    return _mean(_own(shards, adapters, inputs, gradient, first, goes_on))


def wrong_up_before_down(shards, adapters, inputs, gradient, first):
    """right is"""
    return _mean(_own(shards, adapters, inputs, gradient, first).flip(1))


def wrong_frozen_adapters_too(shards, adapters, inputs, gradient, first):
    """right is"""
    return _mean(_own(shards, adapters, inputs, gradient, 0))


def wrong_returns_nothing(shards, adapters, inputs, gradient, first):
    """returned nothing"""
    _mean(_own(shards, adapters, inputs, gradient, first))


def wrong_own_rows_of_a_weight(shards, adapters, inputs, gradient, first):
    """multiplies with this rank's rows of a weight alone"""
    gradients, rows = torch.empty_like(adapters[first:]), shards.shape[1]
    for layer in reversed(range(first, len(shards))):
        (down, up), x = adapters[layer], inputs[layer]
        back = gradient @ up.T
        gradients[layer - first] = torch.stack([back.T @ x, down @ x.T @ gradient])
        gradient = gradient.split(rows, dim=1)[dist.get_rank()] @ shards[layer] + back @ down
    return _mean(gradients)


def wrong_reduces_all_adapters(shards, adapters, inputs, gradient, first):
    """reduces the gradients of all adapters"""
    everything = torch.zeros_like(adapters)
    everything[first:] = _own(shards, adapters, inputs, gradient, first)
    return _mean(everything)[first:]


def wrong_last_layer_first(shards, adapters, inputs, gradient, first):
    """These are the right numbers, in another order."""
    return _mean(_own(shards, adapters, inputs, gradient, first).flip(0))
