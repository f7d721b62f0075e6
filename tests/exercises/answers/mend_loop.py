def sharded(model, **options):
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loop(model, optimizer, inputs, targets, *, syncs=None, kept=None, as_kept=None, each=None, last=None, divides=True):
    """The right loop, with what an answer does otherwise put in."""
    log, largest = [], 0.0
    for step in range(len(inputs)):
        total, parts = torch.zeros(()), len(inputs[step])
        for number in range(parts):
            if syncs is not None:
                model.set_requires_gradient_sync(syncs(number, parts))
            said = model(inputs[step][number])
            loss = nn.functional.mse_loss(said, targets[step][number])
            loss = loss / parts if divides else loss
            loss.backward()
            largest = max(largest, said.abs().max().item())
            if kept is not None:
                kept.append(said.detach() if as_kept is None else as_kept(said.detach()))
            total += loss.detach() if each is None else each(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        log.append((mean if last is None else last)(total))
    return model, log, largest


def mean(total):
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def is_last(number, parts):
    return number == parts - 1


def right_as_shipped(model, inputs, targets):
    return loop(model, sharded(model), inputs, targets, syncs=is_last)


def right_sync_off_and_on(model, inputs, targets):
    optimizer = sharded(model)
    log, largest = [], torch.zeros(())
    for batches, wanted in zip(inputs, targets):
        losses = []
        model.set_requires_gradient_sync(False)
        for number, rows in enumerate(batches):
            if number == len(batches) - 1:
                model.set_requires_gradient_sync(True)
            said = model(rows)
            loss = nn.functional.mse_loss(said, wanted[number]) / len(batches)
            loss.backward()
            losses.append(loss.detach())
            largest = torch.maximum(largest, said.detach().abs().max())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total = torch.stack(losses).sum()
        dist.all_reduce(total)
        log.append(total / dist.get_world_size())
    return model, torch.stack(log).tolist(), largest.item()


def right_first_and_last_apart(model, inputs, targets):
    fully_shard(model.first)
    fully_shard(model.last)
    return loop(model, sharded(model), inputs, targets, syncs=is_last)


def right_root_released_too(model, inputs, targets):
    for module in [*model.blocks, model]:
        fully_shard(module, reshard_after_forward=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return loop(model, optimizer, inputs, targets, syncs=is_last)


def right_all_numbers_of_the_log_at_once(model, inputs, targets):
    totals = []
    model, _, largest = loop(
        model, sharded(model), inputs, targets, syncs=is_last, last=lambda total: totals.append(total)
    )
    log = torch.stack(totals)
    dist.all_reduce(log)
    return model, (log / dist.get_world_size()).tolist(), largest


def right_log_gathered(model, inputs, targets):
    def gathered(total):
        every = [torch.zeros(()) for _ in range(dist.get_world_size())]
        dist.all_gather(every, total)
        return sum(every).item() / len(every)

    return loop(model, sharded(model), inputs, targets, syncs=is_last, last=gathered)


def right_a_list_with_the_log_as_a_tensor(model, inputs, targets):
    model, log, largest = loop(model, sharded(model), inputs, targets, syncs=is_last)
    return [model, torch.tensor(log), torch.tensor([largest])]


def wrong_the_model_only(model, inputs, targets):
    """The whole model is one unit"""
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return loop(model, optimizer, inputs, targets, syncs=is_last)


def wrong_nothing_sharded(model, inputs, targets):
    """Nothing is sharded"""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return loop(model, optimizer, inputs, targets)


def wrong_blocks_only(model, inputs, targets):
    """What is in no unit stays whole"""
    for block in model.blocks:
        fully_shard(block)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return loop(model, optimizer, inputs, targets)


def wrong_optimizer_first(model, inputs, targets):
    """an optimizer made before `fully_shard` keeps the model as it was"""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sharded(model)
    return loop(model, optimizer, inputs, targets, syncs=is_last)


def wrong_kept_for_backward(model, inputs, targets):
    """Units stay whole from forward to backward"""
    return loop(model, sharded(model, reshard_after_forward=False), inputs, targets, syncs=is_last)


def wrong_all_blocks_as_one_unit(model, inputs, targets):
    """More than two blocks were whole at a time"""
    fully_shard(list(model.blocks))
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return loop(model, optimizer, inputs, targets, syncs=is_last)


def wrong_every_layer(model, inputs, targets):
    """units smaller than a block save next to nothing"""
    for block in model.blocks:
        fully_shard(block.up)
        fully_shard(block.down)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return loop(model, optimizer, inputs, targets, syncs=is_last)


def wrong_reduced_each_time(model, inputs, targets):
    """gradients are reduced after every micro-batch"""
    return loop(model, sharded(model), inputs, targets)


def wrong_reduced_first(model, inputs, targets):
    """reduces after the first micro-batch"""
    return loop(model, sharded(model), inputs, targets, syncs=lambda number, _: number == 0)


def wrong_outputs_kept(model, inputs, targets):
    """Something of every micro-batch is kept"""
    return loop(model, sharded(model), inputs, targets, syncs=is_last, kept=[])


def wrong_outputs_kept_as_numpy(model, inputs, targets):
    """bytes outside of torch, in numpy arrays, lists or the like; 2,048 are enough"""
    return loop(
        model, sharded(model), inputs, targets, syncs=is_last, kept=[], as_kept=lambda said: said.numpy().copy()
    )


def wrong_outputs_kept_as_lists(model, inputs, targets):
    """bytes outside of torch, in numpy arrays, lists or the like; 2,048 are enough"""
    return loop(model, sharded(model), inputs, targets, syncs=is_last, kept=[], as_kept=torch.Tensor.tolist)


def wrong_log_in_each_micro_batch(model, inputs, targets):
    """the log needs one number a step, and one exchange"""

    def reduced(loss):
        loss = loss.clone()
        dist.all_reduce(loss)
        return loss / dist.get_world_size()

    return loop(model, sharded(model), inputs, targets, syncs=is_last, each=reduced, last=torch.Tensor.item)


def wrong_log_on_rank_0(model, inputs, targets):
    """`train` hangs"""

    def alone(total):
        if dist.get_rank() == 0:
            dist.all_reduce(total)
        return total.item() / dist.get_world_size()

    return loop(model, sharded(model), inputs, targets, syncs=is_last, last=alone)


def wrong_not_divided(model, inputs, targets):
    """takes steps of all micro-batches added up"""
    return loop(model, sharded(model), inputs, targets, syncs=is_last, divides=False)


def wrong_own_log(model, inputs, targets):
    """logs this rank's own losses"""
    return loop(model, sharded(model), inputs, targets, syncs=is_last, last=torch.Tensor.item)


def wrong_model_only_returned(model, inputs, targets):
    """rank 0 got something else than model, log and largest"""
    return loop(model, sharded(model), inputs, targets, syncs=is_last)[0]


def wrong_returns_nothing(model, inputs, targets):
    """returned nothing on rank 0. Is a `return` missing?"""
    loop(model, sharded(model), inputs, targets, syncs=is_last)


def wrong_log_of_all_micro_batches(model, inputs, targets):
    """logs the losses of all micro-batches added up"""
    parts = len(inputs[0])
    return loop(model, sharded(model), inputs, targets, syncs=is_last, each=lambda loss: parts * loss)


def wrong_largest_with_its_sign(model, inputs, targets):
    """takes the largest number with its sign"""
    said = []
    model, log, _ = loop(
        model, sharded(model), inputs, targets, syncs=is_last, kept=said, as_kept=lambda each: each.max().item()
    )
    return model, log, max(said)


def wrong_largest_of_the_last_micro_batch(model, inputs, targets):
    """keeps the largest number of the last micro-batch alone"""
    said = []
    model, log, _ = loop(
        model, sharded(model), inputs, targets, syncs=is_last, kept=said, as_kept=lambda each: each.abs().max().item()
    )
    return model, log, said[-1]
