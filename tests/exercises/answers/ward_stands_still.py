def sharded():
    model = models.build("mlp-odd")
    for layer in model.children():
        fully_shard(layer)
    return fully_shard(model)


def right_as_shipped(inputs, targets):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), wanted)
        total = loss.detach().clone()
        dist.all_reduce(total)
        if total.isnan():
            continue
        loss.backward()
        optimizer.step()
    return model


def right_largest_flag(inputs, targets):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), wanted)
        bad = torch.tensor([float(not math.isfinite(loss.item()))])
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad.item() == 0:
            loss.backward()
            optimizer.step()
    return model


def right_gathered_objects(inputs, targets):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), wanted)
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, bool(loss.isnan()))
        if any(every):
            continue
        loss.backward()
        optimizer.step()
    return model


def right_backward_anyway_and_a_norm_of_all(inputs, targets):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        nn.functional.mse_loss(model(rows), wanted).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")).full_tensor()
        if not norm.isnan():
            optimizer.step()
        optimizer.zero_grad()
    return model


def right_looks_at_the_rows_before_forward(inputs, targets):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        bad = torch.isnan(rows).any().int()
        dist.all_reduce(bad)
        if bad:
            continue
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def right_decides_for_all_steps_at_once(inputs, targets):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    bad = inputs.isnan().flatten(1).any(1).float()
    dist.all_reduce(bad)
    for rows, wanted in zip(inputs[bad == 0], targets[bad == 0], strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def wrong_as_examined(inputs, targets):
    """`train` hangs"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), wanted)
        if loss.isnan():
            continue
        loss.backward()
        optimizer.step()
    return model


def wrong_asks_only_where_it_is_bad(inputs, targets):
    """`train` hangs"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), wanted)
        if loss.isnan():
            bad = torch.ones(1)
            dist.all_reduce(bad)
            if bad:
                continue
        loss.backward()
        optimizer.step()
    return model


def wrong_waits_for_the_others(inputs, targets):
    """`train` hangs"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), wanted)
        if loss.isnan():
            dist.barrier()
            continue
        loss.backward()
        optimizer.step()
    return model


def wrong_no_check(inputs, targets):
    """rank 0 got weights that are nan; right is"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def wrong_leaves_out_only_its_own_update(inputs, targets):
    """makes the step with the nan in it"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), wanted)
        loss.backward()
        if loss.isnan():
            continue
        optimizer.step()
    return model


def wrong_smallest_flag(inputs, targets):
    """makes the step with the nan in it"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), wanted)
        bad = loss.detach().isnan().float()
        dist.all_reduce(bad, op=dist.ReduceOp.MIN)
        if bad:
            continue
        loss.backward()
        optimizer.step()
    return model


def wrong_a_second_forward_on_one_rank(inputs, targets):
    """`train` hangs"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), wanted)
        if loss.isnan():
            loss = model(torch.zeros_like(rows)).sum() * 0.0
        loss.backward()
        optimizer.step()
    return model


def wrong_zeros_in_its_place(inputs, targets):
    """makes the step with the other ranks' rows alone"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows.nan_to_num()), wanted)
        if rows.isnan().any():
            loss = loss * 0.0
        loss.backward()
        optimizer.step()
    return model


def wrong_rows_made_zero(inputs, targets):
    """right is"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows.nan_to_num()), wanted).backward()
        optimizer.step()
    return model


def wrong_stops_there(inputs, targets):
    """right is"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), wanted)
        total = loss.detach().clone()
        dist.all_reduce(total)
        if total.isnan():
            break
        loss.backward()
        optimizer.step()
    return model


def wrong_keeps_the_gradient_of_the_step_before(inputs, targets):
    """right is"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        loss = nn.functional.mse_loss(model(rows), wanted)
        total = loss.detach().clone()
        dist.all_reduce(total)
        if not total.isnan():
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
    return model


def wrong_shards_returned(inputs, targets):
    """numbers, the first"""
    model = right_as_shipped(inputs, targets)
    return torch.cat([weight.to_local().flatten() for weight in model.parameters()])


def wrong_returns_nothing(inputs, targets):
    """returned nothing"""
    right_as_shipped(inputs, targets)
