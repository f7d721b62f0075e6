def right_in_three_parts(mine, start, columns):
    row, column = divmod(start, columns)
    head = min(len(mine), (columns - column) % columns)
    whole = (len(mine) - head) // columns
    parts = [
        (row, column, mine[:head].reshape(1, -1)),
        (row + (column > 0), 0, mine[head : head + whole * columns].reshape(whole, columns)),
        (row + (column > 0) + whole, 0, mine[head + whole * columns :].reshape(1, -1)),
    ]
    return [part for part in parts if part[2].numel()]


def right_by_rows_joined(mine, start, columns):
    rows = {}
    for place, value in enumerate(mine, start):
        rows.setdefault(place // columns, []).append(value)
    boxes = []
    for row, values in rows.items():
        column = start % columns if row == start // columns else 0
        block = torch.stack(values)[None]
        if boxes and len(values) == columns == boxes[-1][2].shape[1]:
            boxes[-1] = (*boxes[-1][:2], torch.cat([boxes[-1][2], block]))
        else:
            boxes.append((row, column, block))
    return boxes


def right_on_a_canvas(mine, start, columns):
    stop = start + len(mine)
    edges = sorted(
        {start, stop, *(e for e in (-(-start // columns) * columns, stop // columns * columns) if start < e < stop)}
    )
    return [
        [first // columns, first % columns, mine[first - start : last - start].view(-1, min(columns, last - first))]
        for first, last in zip(edges, edges[1:])
    ]


def wrong_row_by_row(mine, start, columns):
    """makes a box of each row"""
    boxes, stop = [], start + len(mine)
    while start < stop:
        end = min(stop, (start // columns + 1) * columns)
        boxes.append((start // columns, start % columns, mine[: end - start][None]))
        mine, start = mine[end - start :], end
    return boxes


def wrong_from_the_edge(mine, start, columns):
    """takes the piece to begin at the beginning of a row"""
    row, whole = start // columns, len(mine) // columns
    boxes = [(row, 0, mine[: whole * columns].view(whole, columns))] if whole else []
    if len(mine) % columns:
        boxes.append((row + whole, 0, mine[whole * columns :][None]))
    return boxes


def wrong_without_the_end(mine, start, columns):
    """leaves out the beginning of a row at the end"""
    return [box for box in right_in_three_parts(mine, start, columns) if box[1] or box[2].shape[1] == columns]


def wrong_column_first(mine, start, columns):
    """gives the column first"""
    return [(column, row, block) for row, column, block in right_in_three_parts(mine, start, columns)]


def wrong_empty_ones_too(mine, start, columns):
    """right is"""
    row, column = divmod(start, columns)
    head = min(len(mine), (columns - column) % columns)
    whole = (len(mine) - head) // columns
    return [
        (row, column, mine[:head].reshape(1, -1)),
        (row + (column > 0), 0, mine[head : head + whole * columns].reshape(whole, columns)),
        (row + (column > 0) + whole, 0, mine[head + whole * columns :].reshape(1, -1)),
    ]


def wrong_sizes_in_place_of_blocks(mine, start, columns):
    """right is"""
    return [(row, column, tuple(block.shape)) for row, column, block in right_in_three_parts(mine, start, columns)]


def right_from_the_back(mine, start, columns):
    stop, boxes = start + len(mine), []
    while stop > start:
        row, last = divmod(stop, columns)
        if last or stop - columns < start:
            first = max(start, (stop - 1) // columns * columns)
        else:
            first = -(-start // columns) * columns
        height = max(1, (stop - first) // columns)
        block = mine[first - start : stop - start].reshape(height, -1)
        boxes.insert(0, (first // columns, first % columns, block))
        stop = first
    return boxes


def right_by_recursion(mine, start, columns):
    if not len(mine):
        return []
    row, column = divmod(start, columns)
    size = min(len(mine), columns - column) if column or len(mine) < columns else len(mine) // columns * columns
    width = min(size, columns)
    return [
        [torch.tensor(row), column, mine[:size].view(-1, width).clone()],
        *right_by_recursion(mine[size:], start + size, columns),
    ]


def wrong_blocks_without_height(mine, start, columns):
    """right is"""
    return [(row, column, block.flatten()) for row, column, block in right_in_three_parts(mine, start, columns)]


def wrong_rows_counted_from_the_piece(mine, start, columns):
    """right is"""
    boxes = right_in_three_parts(mine, start, columns)
    return [(row - start // columns, column, block) for row, column, block in boxes]


def wrong_the_whole_rows_alone(mine, start, columns):
    """right is"""
    return [box for box in right_in_three_parts(mine, start, columns) if box[2].shape[1] == columns]


def wrong_turned_blocks(mine, start, columns):
    """right is"""
    return [(row, column, block.T) for row, column, block in right_in_three_parts(mine, start, columns)]
