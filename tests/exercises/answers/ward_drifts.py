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
        nn.functional.mse_loss(model(rows), wanted).backward()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        dist.all_reduce(squares)
        for shard in shards:
            shard.mul_(min(1.0, 0.25 / squares.sqrt().item()))
        optimizer.step()
    return model


def right_torchs_own_clipping(inputs, targets):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    return model


def right_gathered_squares(inputs, targets):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        every = [torch.zeros(()) for _ in range(dist.get_world_size())]
        dist.all_gather(every, squares)
        squares = torch.stack(every).sum()
        for shard in shards:
            shard.mul_(min(1.0, 0.25 / squares.sqrt().item()))
        optimizer.step()
    return model


def right_one_unit(inputs, targets):
    model = fully_shard(models.build("mlp-odd"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        dist.all_reduce(squares)
        for shard in shards:
            shard.mul_(min(1.0, 0.25 / squares.sqrt().item()))
        optimizer.step()
    return model


def right_one_reduction_a_weight(inputs, targets):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.zeros(())
        for shard in shards:
            square = shard.square().sum()
            dist.all_reduce(square)
            squares += square
        for shard in shards:
            shard.mul_(min(1.0, 0.25 / squares.sqrt().item()))
        optimizer.step()
    return model


def right_scaled_tensorwise(inputs, targets):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        dist.all_reduce(squares)
        for shard in shards:
            shard.mul_(torch.clamp(0.25 / squares.sqrt(), max=1.0))
        optimizer.step()
    return model


def wrong_own_norm(inputs, targets):
    """clips each shard by its own norm"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        for shard in shards:
            shard.mul_(min(1.0, 0.25 / squares.sqrt().item()))
        optimizer.step()
    return model


def wrong_no_clipping(inputs, targets):
    """with gradients that are not clipped to 0.25"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def wrong_mean_of_squares(inputs, targets):
    """takes the mean of the ranks' squares"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        dist.all_reduce(squares)
        squares /= dist.get_world_size()
        for shard in shards:
            shard.mul_(min(1.0, 0.25 / squares.sqrt().item()))
        optimizer.step()
    return model


def wrong_largest_shard(inputs, targets):
    """takes the norm of the largest shard"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        dist.all_reduce(squares, op=dist.ReduceOp.MAX)
        for shard in shards:
            shard.mul_(min(1.0, 0.25 / squares.sqrt().item()))
        optimizer.step()
    return model


def wrong_clipped_after_the_update(inputs, targets):
    """with gradients that are not clipped to 0.25"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        dist.all_reduce(squares)
        for shard in shards:
            shard.mul_(min(1.0, 0.25 / squares.sqrt().item()))
    return model


def wrong_square_for_norm(inputs, targets):
    """right is"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        dist.all_reduce(squares)
        for shard in shards:
            shard.mul_(min(1.0, 0.25 / squares.item()))
        optimizer.step()
    return model


def wrong_always_scaled(inputs, targets):
    """right is"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        dist.all_reduce(squares)
        for shard in shards:
            shard.mul_(0.1 / squares.sqrt().item())
        optimizer.step()
    return model


def wrong_by_value(inputs, targets):
    """right is"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        for weight in model.parameters():
            weight.grad.to_local().clamp_(-0.01, 0.01)
        optimizer.step()
    return model


def wrong_sum_of_norms(inputs, targets):
    """right is"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        squares = squares.sqrt()
        dist.all_reduce(squares)
        squares = squares.square()
        for shard in shards:
            shard.mul_(min(1.0, 0.25 / squares.sqrt().item()))
        optimizer.step()
    return model


def wrong_shards_returned(inputs, targets):
    """numbers, the first"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        dist.all_reduce(squares)
        for shard in shards:
            shard.mul_(min(1.0, 0.25 / squares.sqrt().item()))
        optimizer.step()
    return torch.cat([weight.to_local().flatten() for weight in model.parameters()])


def wrong_returns_nothing(inputs, targets):
    """returned nothing"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        dist.all_reduce(squares)
        for shard in shards:
            shard.mul_(min(1.0, 0.25 / squares.sqrt().item()))
        optimizer.step()
    model.eval()


def wrong_small_ones_scaled_up(inputs, targets):
    """scales a gradient up that is small enough as it is"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        dist.all_reduce(squares)
        for shard in shards:
            shard.mul_(0.25 / squares.sqrt().item())
        optimizer.step()
    return model
