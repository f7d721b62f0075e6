def right_by_chunks(path, name):
    with safe_open(path, framework="pt") as file:
        piece = file.get_slice(name)
        places = torch.arange(piece.get_shape()[0]).chunk(dist.get_world_size())
        if dist.get_rank() >= len(places):
            return torch.empty(0, piece.get_shape()[1])
        mine = places[dist.get_rank()].tolist()
        return piece[mine[0] : mine[-1] + 1].clone()


def right_into_memory_of_its_own(path, name):
    rank, size = dist.get_rank(), dist.get_world_size()
    with safe_open(path, framework="pt") as file:
        piece = file.get_slice(name)
        rows, columns = piece.get_shape()
        most = -(-rows // size)
        start, stop = min(rank * most, rows), min(rank * most + most, rows)
        mine = torch.empty(stop - start, columns)
        mine.copy_(piece[start:stop])
    return mine


def right_row_by_row(path, name):
    rank, size = dist.get_rank(), dist.get_world_size()
    with safe_open(path, framework="pt") as file:
        piece = file.get_slice(name)
        rows, columns = piece.get_shape()
        most = -(-rows // size)
        mine = torch.empty(max(0, min(most, rows - rank * most)), columns)
        for row in range(len(mine)):
            mine[row] = piece[rank * most + row : rank * most + row + 1]
    return mine


def right_a_slice_of_the_mapped_tensor(path, name):
    rank, size = dist.get_rank(), dist.get_world_size()
    with safe_open(path, framework="pt") as file:
        weight = file.get_tensor(name)  # mapped, and not read
        most = -(-len(weight) // size)
        return weight[rank * most : (rank + 1) * most].clone()


def right_without_a_with(path, name):
    file = safe_open(path, framework="pt")
    piece = file.get_slice(name)
    rows = piece.get_shape()[0]
    most = (rows + dist.get_world_size() - 1) // dist.get_world_size()
    start = min(dist.get_rank() * most, rows)
    return torch.clone(piece[start : min(start + most, rows)])


def wrong_rounded_down(path, name):
    """rounds the size down"""
    with safe_open(path, framework="pt") as file:
        piece = file.get_slice(name)
        most = piece.get_shape()[0] // dist.get_world_size()
        return piece[dist.get_rank() * most : (dist.get_rank() + 1) * most].clone()


def wrong_all_rows(path, name):
    """right is"""
    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name).clone()


def wrong_a_view(path, name):
    """bytes, and keeps all of them: clone() your rows"""
    with safe_open(path, framework="pt") as file:
        piece = file.get_slice(name)
        rows = piece.get_shape()[0]
        most = -(-rows // dist.get_world_size())
        start = min(dist.get_rank() * most, rows)
        return piece[start : min(start + most, rows)]


def wrong_dealt_out(path, name):
    """right is"""
    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name)[dist.get_rank() :: dist.get_world_size()].clone()


def wrong_columns(path, name):
    """right is"""
    with safe_open(path, framework="pt") as file:
        piece = file.get_slice(name)
        columns = piece.get_shape()[1]
        most = -(-columns // dist.get_world_size())
        start = dist.get_rank() * most
        return piece[:, start : min(start + most, columns)].clone()


def wrong_what_is_left_to_the_last(path, name):
    """gives all that is left to the last rank"""
    rank, size = dist.get_rank(), dist.get_world_size()
    with safe_open(path, framework="pt") as file:
        piece = file.get_slice(name)
        rows = piece.get_shape()[0]
        each = rows // size
        return piece[rank * each : rows if rank == size - 1 else rank * each + each].clone()


def wrong_rank_0_reads_for_all(path, name):
    """the target is nothing"""
    rank, size = dist.get_rank(), dist.get_world_size()
    with safe_open(path, framework="pt") as file:
        rows, columns = file.get_slice(name).get_shape()
        whole = file.get_tensor(name).clone() if rank == 0 else torch.empty(rows, columns)
    dist.broadcast(whole, src=0)
    most = -(-rows // size)
    return whole[rank * most : (rank + 1) * most].clone()


def wrong_copies_all_first(path, name):
    """bytes beside its arguments"""
    with safe_open(path, framework="pt") as file:
        weight = file.get_tensor(name).clone()
    most = -(-len(weight) // dist.get_world_size())
    return weight[dist.get_rank() * most : (dist.get_rank() + 1) * most].clone()


def wrong_the_bias(path, name):
    """right is"""
    with safe_open(path, framework="pt") as file:
        piece = file.get_slice("bias")
        rows = piece.get_shape()[0]
        most = -(-rows // dist.get_world_size())
        start = min(dist.get_rank() * most, rows)
        return piece[start : min(start + most, rows)].clone()


def wrong_first_rows_on_every_rank(path, name):
    """It is what rank 0 should get."""
    with safe_open(path, framework="pt") as file:
        piece = file.get_slice(name)
        return piece[: -(-piece.get_shape()[0] // dist.get_world_size())].clone()


def wrong_the_shape_only(path, name):
    """right is"""
    with safe_open(path, framework="pt") as file:
        return file.get_slice(name).get_shape()


def wrong_loads_all_bytes(path, name):
    """load is a finished answer"""
    from safetensors.torch import load

    with open(path, "rb") as file:
        weight = load(file.read())[name]
    most = -(-len(weight) // dist.get_world_size())
    return weight[dist.get_rank() * most : (dist.get_rank() + 1) * most].clone()


def wrong_reads_all_bytes(path, name):
    """bytes outside of torch"""
    import json

    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        content = bytearray(file.read())
    (rows, columns), (start, stop) = header[name]["shape"], header[name]["data_offsets"]
    weight = torch.frombuffer(content, dtype=torch.float32, count=(stop - start) // 4, offset=start).view(rows, columns)
    most = -(-rows // dist.get_world_size())
    return weight[dist.get_rank() * most : (dist.get_rank() + 1) * most].clone()


def wrong_an_array_of_numpys(path, name):
    """an array of numpy's, where a tensor is asked for"""
    rank, size = dist.get_rank(), dist.get_world_size()
    with safe_open(path, framework="np") as file:
        piece = file.get_slice(name)
        rows = piece.get_shape()[0]
        most = -(-rows // size)
        return piece[min(rank * most, rows) : min(rank * most + most, rows)]


def right_from_a_memory_map(path, name):
    import json

    with open(path, "rb") as file:
        header = file.read(int.from_bytes(file.read(8), "little"))
    entry = json.loads(header)[name]
    rows, columns = entry["shape"]
    begin = 8 + len(header) + entry["data_offsets"][0]
    weight = np.memmap(path, np.float32, "r", begin, (rows, columns))
    most = -(-rows // dist.get_world_size())
    return torch.tensor(weight[dist.get_rank() * most : (dist.get_rank() + 1) * most])


def wrong_a_view_of_a_copy(path, name):
    """bytes, and keeps all of them: clone() your rows"""
    rank, size = dist.get_rank(), dist.get_world_size()
    with safe_open(path, framework="pt") as file:
        weight = file.get_tensor(name).clone()
    most = -(-len(weight) // size)
    return weight[rank * most : (rank + 1) * most]
