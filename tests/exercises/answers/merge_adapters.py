def _whole(mine):
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.cat(parts)


def right_add_(weight, down, up, scale):
    weight.add_(up @ _whole(down), alpha=scale)


def right_addmm_(weight, down, up, scale):
    weight.addmm_(up, _whole(down), alpha=scale)


def right_piece_by_piece(weight, down, up, scale):
    parts = [torch.empty_like(down) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, down)
    for part, columns in zip(parts, up.split(len(down), dim=1)):
        weight += scale * (columns @ part)


def right_by_broadcasts(weight, down, up, scale):
    size = len(down)
    for owner in range(dist.get_world_size()):
        part = down if owner == dist.get_rank() else torch.empty_like(down)
        if dist.get_world_size() > 1:
            others = [rank for rank in range(dist.get_world_size()) if rank != owner]
            if owner == dist.get_rank():
                for each in [dist.isend(part, rank) for rank in others]:
                    each.wait()
            else:
                dist.recv(part, owner)
        weight += scale * up[:, owner * size : (owner + 1) * size] @ part


def right_into_one_tensor(weight, down, up, scale):
    whole = down.new_empty(up.shape[1], down.shape[1])
    dist.all_gather(list(whole.chunk(dist.get_world_size())), down)
    weight[:] = weight + up.mul(scale) @ whole


def right_under_no_grad(weight, down, up, scale):
    with torch.no_grad():
        weight.copy_(weight + scale * torch.einsum("or,ri->oi", up, _whole(down)))


def wrong_not_in_place(weight, down, up, scale):
    """leaves the weight as it was"""
    return weight + scale * up @ _whole(down)


def wrong_no_scale(weight, down, up, scale):
    """leaves out the scale"""
    weight += up @ _whole(down)


def wrong_divided_by_the_scale(weight, down, up, scale):
    """right is"""
    weight += up @ _whole(down) / scale


def wrong_taken_away(weight, down, up, scale):
    """takes the product away"""
    weight -= scale * up @ _whole(down)


def wrong_own_rows_only(weight, down, up, scale):
    """uses this rank's rows of `down` only"""
    start = dist.get_rank() * len(down)
    weight += scale * up[:, start : start + len(down)] @ down


def wrong_the_model_gathered(weight, down, up, scale):
    """bytes; the target is"""
    merged = _whole(weight) + scale * _whole(up) @ _whole(down)
    weight.copy_(merged.chunk(dist.get_world_size())[dist.get_rank()])


def wrong_both_matrices_gathered(weight, down, up, scale):
    """bytes; the target is"""
    product = _whole(up) @ _whole(down)
    weight += scale * product.chunk(dist.get_world_size())[dist.get_rank()]


def wrong_products_added_up(weight, down, up, scale):
    """bytes; the target is"""
    start, rows = dist.get_rank() * len(down), len(weight) * dist.get_rank()
    product = _whole(up)[:, start : start + len(down)] @ down
    dist.all_reduce(product)
    weight += scale * product[rows : rows + len(weight)]


def wrong_added_twice(weight, down, up, scale):
    """right is"""
    product = scale * up @ _whole(down)
    weight += product
    weight += product


def wrong_parts_in_another_order(weight, down, up, scale):
    """right is"""
    weight += scale * up @ _whole(down).flip(0)


def wrong_transposed(weight, down, up, scale):
    """failed"""
    weight += scale * _whole(down).T @ up.T


def wrong_all_reduced_thin_matrix(weight, down, up, scale):
    """bytes; the target is"""
    whole = torch.zeros(up.shape[1], down.shape[1])
    whole[dist.get_rank() * len(down) :][: len(down)] = down
    dist.all_reduce(whole)
    weight += scale * up @ whole
