def right_over_named_parameters(model, rows, wanted):
    optimizer = torch.optim.Adam(model.parameters())
    loss = torch.nn.functional.mse_loss(model(rows), wanted)
    loss.backward()
    optimizer.step()
    named = dict(model.named_parameters())
    state = 0
    for parameter in named.values():
        for kept in optimizer.state[parameter].values():
            state += kept.nbytes
    return (
        sum(p.nbytes for p in named.values()),
        sum(p.grad.nbytes for p in named.values() if p.grad is not None),
        state,
    )


def right_by_elements_and_their_size(model, rows, wanted):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    ((model(rows) - wanted) ** 2).mean().backward()
    optimizer.step()

    def size(tensors):
        return sum(t.numel() * t.element_size() for t in tensors)

    return [
        size(model.parameters()),
        size(p.grad for p in model.parameters() if p.requires_grad),
        size(t for each in optimizer.state.values() for t in each.values() if torch.is_tensor(t)),
    ]


def right_by_the_formula_and_the_counters(model, rows, wanted):
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    torch.nn.functional.mse_loss(model(rows), wanted).backward()
    optimizer.step()
    trained = [p for p in model.parameters() if p.requires_grad]
    psi = sum(p.numel() for p in trained)
    return sum(4 * p.numel() for p in model.parameters()), 4 * psi, 8 * psi + 4 * len(trained)


def right_by_state_dicts(model, rows, wanted):
    optimizer = torch.optim.Adam(model.parameters())
    torch.nn.functional.mse_loss(model(rows), wanted).backward()
    optimizer.step()
    storages = {w.untyped_storage().data_ptr(): w.nbytes for w in model.state_dict().values()}
    kept = [t for entry in optimizer.state_dict()["state"].values() for t in entry.values()]
    return sum(storages.values()), sum(p.grad.nbytes for p in optimizer.state), sum(t.nbytes for t in kept)


def right_as_a_tensor(model, rows, wanted):
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    torch.nn.functional.mse_loss(model(rows), wanted, reduction="sum").backward()
    optimizer.step()
    counts = torch.zeros(3, dtype=torch.int64)
    for parameter in model.parameters():
        counts[0] += parameter.nbytes
        if parameter.grad is not None:
            counts[1] += parameter.grad.nbytes
            counts[2] += sum(t.nbytes for t in optimizer.state[parameter].values())
    return counts.tolist()


def wrong_before_the_update(model, rows, wanted):
    """counts before the first update, when Adam remembers nothing"""
    optimizer = torch.optim.Adam(model.parameters())
    torch.nn.functional.mse_loss(model(rows), wanted).backward()
    state = sum(t.nbytes for each in optimizer.state.values() for t in each.values())
    optimizer.step()
    return (
        sum(p.nbytes for p in model.parameters()),
        sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        state,
    )


def wrong_sixteen_times_all(model, rows, wanted):
    """computes all from the parameters"""
    count = sum(p.numel() for p in model.parameters())
    return 4 * count, 4 * count, 8 * count


def wrong_shared_weight_twice(model, rows, wanted):
    """counts the shared weight twice"""
    optimizer = torch.optim.Adam(model.parameters())
    torch.nn.functional.mse_loss(model(rows), wanted).backward()
    optimizer.step()
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    state = sum(t.nbytes for each in optimizer.state.values() for t in each.values())
    return sum(p.nbytes for layer in model for p in layer.parameters()), gradients, state


def wrong_gradients_of_frozen_ones(model, rows, wanted):
    """takes every parameter for one that has a gradient"""
    optimizer = torch.optim.Adam(model.parameters())
    torch.nn.functional.mse_loss(model(rows), wanted).backward()
    optimizer.step()
    parameters = sum(p.nbytes for p in model.parameters())
    return parameters, parameters, sum(t.nbytes for each in optimizer.state.values() for t in each.values())


def wrong_without_counters(model, rows, wanted):
    """leaves Adam's step counters out"""
    optimizer = torch.optim.Adam(model.parameters())
    torch.nn.functional.mse_loss(model(rows), wanted).backward()
    optimizer.step()
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    return sum(p.nbytes for p in model.parameters()), gradients, 2 * gradients


def wrong_numbers_for_bytes(model, rows, wanted):
    """counts numbers and not bytes"""
    optimizer = torch.optim.Adam(model.parameters())
    torch.nn.functional.mse_loss(model(rows), wanted).backward()
    optimizer.step()
    gradients = sum(p.numel() for p in model.parameters() if p.requires_grad)
    state = sum(t.numel() for each in optimizer.state.values() for t in each.values())
    return sum(p.numel() for p in model.parameters()), gradients, state


def wrong_under_sgd(model, rows, wanted):
    """counts before the first update, when Adam remembers nothing"""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.nn.functional.mse_loss(model(rows), wanted).backward()
    optimizer.step()
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    return sum(p.nbytes for p in model.parameters()), gradients, 0


def wrong_after_zero_grad(model, rows, wanted):
    """drops the gradients before it counts them"""
    optimizer = torch.optim.Adam(model.parameters())
    torch.nn.functional.mse_loss(model(rows), wanted).backward()
    optimizer.step()
    optimizer.zero_grad()
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    state = sum(t.nbytes for each in optimizer.state.values() for t in each.values())
    return sum(p.nbytes for p in model.parameters()), gradients, state


def wrong_one_sum(model, rows, wanted):
    """right is"""
    optimizer = torch.optim.Adam(model.parameters())
    torch.nn.functional.mse_loss(model(rows), wanted).backward()
    optimizer.step()
    return sum(p.nbytes for p in model.parameters())


def wrong_over_all_ranks(model, rows, wanted):
    """right is"""
    import torch.distributed as dist

    optimizer = torch.optim.Adam(model.parameters())
    torch.nn.functional.mse_loss(model(rows), wanted).backward()
    optimizer.step()
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    state = sum(t.nbytes for each in optimizer.state.values() for t in each.values())
    counts = torch.tensor([sum(p.nbytes for p in model.parameters()), gradients, state])
    dist.all_reduce(counts)
    return counts.tolist()


def wrong_divided_by_ranks(model, rows, wanted):
    """right is"""
    import torch.distributed as dist

    optimizer = torch.optim.Adam(model.parameters())
    torch.nn.functional.mse_loss(model(rows), wanted).backward()
    optimizer.step()
    parameters = sum(p.nbytes for p in model.parameters())
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    state = sum(t.nbytes for each in optimizer.state.values() for t in each.values())
    return parameters, gradients, state // (2 * dist.get_world_size())


def wrong_without_the_frozen_one(model, rows, wanted):
    """leaves the frozen parameter out"""
    optimizer = torch.optim.Adam(model.parameters())
    torch.nn.functional.mse_loss(model(rows), wanted).backward()
    optimizer.step()
    trained = [p for p in model.parameters() if p.requires_grad]
    state = sum(t.nbytes for each in optimizer.state.values() for t in each.values())
    return sum(p.nbytes for p in trained), sum(p.grad.nbytes for p in trained), state
