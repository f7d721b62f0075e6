def sharded():
    model = models.build("mlp-odd")
    for layer in model.children():
        fully_shard(layer)
    return fully_shard(model)


def trained(inputs, targets, syncs, parts=lambda rows: rows.chunk(3), share=3, clears=True):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        if clears:
            optimizer.zero_grad()
        for number, (some, theirs) in enumerate(zip(parts(rows), parts(wanted), strict=True)):
            model.set_requires_gradient_sync(syncs(number))
            (nn.functional.mse_loss(model(some), theirs) / share).backward()
        optimizer.step()
    return model


def right_with_the_last(inputs, targets):
    return trained(inputs, targets, lambda number: number == 2)


def right_from_two_on(inputs, targets):
    return trained(inputs, targets, lambda number: number >= 2, parts=lambda rows: (rows[:2], rows[2:4], rows[4:]))


def right_two_micro_batches(inputs, targets):
    return trained(inputs, targets, lambda number: number == 1, parts=lambda rows: rows.chunk(2), share=2)


def right_one_row_each(inputs, targets):
    return trained(inputs, targets, lambda number: number == 5, parts=lambda rows: rows.chunk(6), share=6)


def right_one_backward_of_all(inputs, targets):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def right_first_two_in_a_loop_of_their_own(inputs, targets):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        *first, last = zip(rows.chunk(3), wanted.chunk(3), strict=True)
        model.set_requires_gradient_sync(False)
        for some, theirs in first:
            (nn.functional.mse_loss(model(some), theirs) / 3).backward()
        model.set_requires_gradient_sync(True)
        (nn.functional.mse_loss(model(last[0]), last[1]) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def wrong_with_the_first(inputs, targets):
    """reduces with the first micro-batch, and sends the others a step late"""
    return trained(inputs, targets, lambda number: number == 0, parts=lambda rows: [rows[k::3] for k in range(3)])


def wrong_with_the_second(inputs, targets):
    """right is"""
    return trained(inputs, targets, lambda number: number == 1)


def wrong_off_by_one(inputs, targets):
    """never reduces"""
    return trained(inputs, targets, lambda number: number == 3)


def wrong_never(inputs, targets):
    """never reduces"""
    return trained(inputs, targets, lambda number: False)


def wrong_always(inputs, targets):
    """3 are enough, one for each layer, with the last micro-batch"""
    return trained(inputs, targets, lambda number: True)


def wrong_all_but_the_last(inputs, targets):
    """3 are enough, one for each layer, with the last micro-batch"""
    return trained(inputs, targets, lambda number: number < 2)


def wrong_not_divided(inputs, targets):
    """does not divide the losses by the number of micro-batches"""
    return trained(inputs, targets, lambda number: number == 2, share=1)


def wrong_divided_by_ranks_too(inputs, targets):
    """right is"""
    return trained(inputs, targets, lambda number: number == 2, share=3 * dist.get_world_size())


def wrong_never_cleared(inputs, targets):
    """right is"""
    return trained(inputs, targets, lambda number: number == 2, clears=False)


def wrong_the_last_alone(inputs, targets):
    """uses one micro-batch of three"""
    return trained(inputs, targets, lambda number: True, parts=lambda rows: [rows[2::3]])


def wrong_the_same_three_times(inputs, targets):
    """right is"""
    return trained(inputs, targets, lambda number: number == 2, parts=lambda rows: [rows[:2]] * 3)


def wrong_returns_nothing(inputs, targets):
    """returned nothing"""
    right_with_the_last(inputs, targets)
