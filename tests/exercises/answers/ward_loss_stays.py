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
        optimizer.step()
    return model


def right_one_unit(inputs, targets):
    model = fully_shard(models.build("mlp-odd"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def right_kept_for_backward(inputs, targets):
    model = fully_shard(models.build("mlp-odd"), reshard_after_forward=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def right_update_by_hand(inputs, targets):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.5 * weight.grad
    return model


def right_zeroed_after_the_update(inputs, targets):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def right_data_parallel_by_hand(inputs, targets):
    model = models.build("mlp-odd")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()
        optimizer.step()
    return model


def wrong_optimizer_first(inputs, targets):
    """ends with the weights that it began with"""
    model = models.build("mlp-odd")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    fully_shard(model)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def wrong_nothing_sharded(inputs, targets):
    """trains every rank by itself"""
    model = models.build("mlp-odd")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def wrong_never_zeroed(inputs, targets):
    """adds up the gradients of all steps"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def wrong_steps_times_n(inputs, targets):
    """takes steps N times as long"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5 * dist.get_world_size())
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def wrong_no_update(inputs, targets):
    """ends with the weights that it began with"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
    return model


def wrong_zeroed_before_the_update(inputs, targets):
    """ends with the weights that it began with"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.zero_grad()
        optimizer.step()
    return model


def wrong_one_step_only(inputs, targets):
    """right is"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs[:1], targets[:1], strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def wrong_shards_returned(inputs, targets):
    """numbers, the first"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return torch.cat([weight.to_local().flatten() for weight in model.parameters()])


def wrong_returns_nothing(inputs, targets):
    """returned nothing"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    model.eval()


def wrong_adam(inputs, targets):
    """right is"""
    model = sharded()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model
