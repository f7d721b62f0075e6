from torch.distributed.fsdp import register_fsdp_forward_method


def sharded(**options):
    model = models.build("mlp-odd")
    for layer in model.children():
        fully_shard(layer, **options)
    return fully_shard(model)


def trained(model, inputs, targets, forward):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(forward(rows), wanted).backward()
        optimizer.step()
    return model


def right_called(inputs, targets):
    model = sharded()
    return trained(model, inputs, targets, model)


def right_called_by_name(inputs, targets):
    model = sharded()
    return trained(model, inputs, targets, model.__call__)


def right_forward_registered(inputs, targets):
    model = sharded()
    register_fsdp_forward_method(model, "forward")
    return trained(model, inputs, targets, model.forward)


def right_inside_another(inputs, targets):
    model = sharded()
    outer = nn.Sequential(model)
    trained(outer, inputs, targets, outer)
    return model


def right_released_by_their_own_switch(inputs, targets):
    model = sharded(reshard_after_forward=True)
    return trained(model, inputs, targets, model.forward)


def right_released_by_hand(inputs, targets):
    model = sharded()

    def forward(rows):
        for layer in model:
            rows = layer(rows)
            if isinstance(layer, nn.Linear):
                layer.reshard()
        return rows

    return trained(model, inputs, targets, forward)


def wrong_as_examined(inputs, targets):
    """it took itself for the root"""
    model = sharded()
    return trained(model, inputs, targets, model.forward)


def wrong_layer_by_layer(inputs, targets):
    """it took itself for the root"""
    model = sharded()

    def forward(rows):
        for layer in model:
            rows = layer(rows)
        return rows

    return trained(model, inputs, targets, forward)


def wrong_no_root(inputs, targets):
    """it took itself for the root"""
    model = models.build("mlp-odd")
    for layer in model.children():
        fully_shard(layer)
    return trained(model, inputs, targets, model)


def wrong_kept_for_backward(inputs, targets):
    """it took itself for the root"""
    model = sharded(reshard_after_forward=False)
    return trained(model, inputs, targets, model)


def wrong_one_unit(inputs, targets):
    """The whole model is one unit"""
    model = fully_shard(models.build("mlp-odd"))
    return trained(model, inputs, targets, model)


def wrong_one_unit_released(inputs, targets):
    """The whole model is one unit"""
    model = fully_shard(models.build("mlp-odd"), reshard_after_forward=True)
    return trained(model, inputs, targets, model)


def wrong_released_when_all_is_done(inputs, targets):
    """gathered before it was their turn, or released too late"""
    model = sharded()

    def forward(rows):
        outputs = model.forward(rows)
        for layer in model:
            layer.reshard()
        return outputs

    return trained(model, inputs, targets, forward)


def wrong_all_gathered_first(inputs, targets):
    """gathered before it was their turn, or released too late"""
    model = sharded()

    def forward(rows):
        for layer in model:
            layer.unshard()
        return model.forward(rows)

    return trained(model, inputs, targets, forward)


def wrong_not_sharded(inputs, targets):
    """Nothing is sharded"""
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


def wrong_gradients_added_up(inputs, targets):
    """adds up the gradients of all steps"""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def wrong_no_update(inputs, targets):
    """ends with the weights that it began with"""
    model = sharded()
    for rows, wanted in zip(inputs, targets, strict=True):
        nn.functional.mse_loss(model(rows), wanted).backward()
    return model


def wrong_returns_nothing(inputs, targets):
    """returned nothing"""
    right_called(inputs, targets)
