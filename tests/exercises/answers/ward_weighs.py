def sharded():
    model = models.build("mlp-odd")
    for layer in model.children():
        fully_shard(layer)
    return fully_shard(model)


def right_as_shipped(inputs, targets, counts):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        number = weights.sum()
        dist.all_reduce(number)
        loss = (losses * weights).sum() / number * dist.get_world_size()
        loss.backward()
        optimizer.step()
    return model


def right_chosen_by_index(inputs, targets, counts):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        number = weights.sum()
        dist.all_reduce(number)
        loss = losses[weights > 0].sum() / number * dist.get_world_size()
        loss.backward()
        optimizer.step()
    return model


def right_gathered_numbers(inputs, targets, counts):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        number = weights.sum()
        every = [torch.zeros(()) for _ in range(dist.get_world_size())]
        dist.all_gather(every, number)
        number = sum(every)
        loss = (losses * weights).sum() / number * dist.get_world_size()
        loss.backward()
        optimizer.step()
    return model


def right_mean_of_numbers(inputs, targets, counts):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        number = weights.sum()
        dist.all_reduce(number)
        loss = (losses * weights).sum() / (number / dist.get_world_size())
        loss.backward()
        optimizer.step()
    return model


def right_gradients_scaled(inputs, targets, counts):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        number = weights.sum()
        dist.all_reduce(number)
        loss = (losses * weights).sum()
        loss.backward()
        for weight in model.parameters():
            weight.grad.mul_(dist.get_world_size() / number.item())
        optimizer.step()
    return model


def right_one_unit(inputs, targets, counts):
    model = fully_shard(models.build("mlp-odd"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        number = weights.sum()
        dist.all_reduce(number)
        loss = (losses * weights).sum() / number * dist.get_world_size()
        loss.backward()
        optimizer.step()
    return model


def wrong_mean_of_means(inputs, targets, counts):
    """takes the mean of the ranks' means"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        loss = (losses * weights).sum() / weights.sum()
        loss.backward()
        optimizer.step()
    return model


def wrong_divided_by_n(inputs, targets, counts):
    """divides by N once more"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        number = weights.sum()
        dist.all_reduce(number)
        loss = (losses * weights).sum() / number
        loss.backward()
        optimizer.step()
    return model


def wrong_all_tokens_learned(inputs, targets, counts):
    """also learns from tokens that do not count"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        number = weights.sum()
        dist.all_reduce(number)
        loss = losses.sum() / number * dist.get_world_size()
        loss.backward()
        optimizer.step()
    return model


def wrong_whole_batch(inputs, targets, counts):
    """divides by the whole batch"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        loss = (losses * weights).mean()
        loss.backward()
        optimizer.step()
    return model


def wrong_largest_number(inputs, targets, counts):
    """right is"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        number = weights.sum()
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        loss = (losses * weights).sum() / number * dist.get_world_size()
        loss.backward()
        optimizer.step()
    return model


def wrong_divided_twice(inputs, targets, counts):
    """right is"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        number = weights.sum()
        dist.all_reduce(number)
        loss = (losses * weights).sum() / number / dist.get_world_size()
        loss.backward()
        optimizer.step()
    return model


def wrong_plain_mean(inputs, targets, counts):
    """right is"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        loss = losses.mean()
        loss.backward()
        optimizer.step()
    return model


def wrong_summed(inputs, targets, counts):
    """right is"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        loss = (losses * weights).sum()
        loss.backward()
        optimizer.step()
    return model


def wrong_number_of_the_step_before(inputs, targets, counts):
    """right is"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        number = weights.sum()
        dist.all_reduce(number)
        number += 1
        loss = (losses * weights).sum() / number * dist.get_world_size()
        loss.backward()
        optimizer.step()
    return model


def wrong_shards_returned(inputs, targets, counts):
    """numbers, the first"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        number = weights.sum()
        dist.all_reduce(number)
        loss = (losses * weights).sum() / number * dist.get_world_size()
        loss.backward()
        optimizer.step()
    return torch.cat([weight.to_local().flatten() for weight in model.parameters()])


def wrong_returns_nothing(inputs, targets, counts):
    """returned nothing"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        number = weights.sum()
        dist.all_reduce(number)
        loss = (losses * weights).sum() / number * dist.get_world_size()
        loss.backward()
        optimizer.step()
    model.eval()
