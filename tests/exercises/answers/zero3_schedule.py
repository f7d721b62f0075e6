def _half(order, prefetch):
    out, started = [], 0
    for place, unit in enumerate(order):
        while started < len(order) and started <= place + prefetch:
            out.append(f"start {order[started]}")
            started += 1
        out += [f"wait {unit}", f"use {unit}", f"release {unit}"]
    return out


def right_by_halves(units, prefetch):
    order = list(range(units))
    return _half(order, prefetch) + _half(order[::-1], prefetch)


def right_with_sets(units, prefetch):
    out = []
    for order in (range(units), range(units - 1, -1, -1)):
        started = set()
        for place, unit in enumerate(order):
            for near in list(order)[place : place + prefetch + 1]:
                if near not in started:
                    started.add(near)
                    out.append(f"start {near}")
            out.extend(f"{word} {unit}" for word in ("wait", "use", "release"))
    return out


def right_as_a_tuple(units, prefetch):
    return tuple(right_by_halves(units, prefetch))


def right_by_mirroring_numbers(units, prefetch):
    forward = _half(list(range(units)), prefetch)
    mirrored = [f"{word.split()[0]} {units - 1 - int(word.split()[1])}" for word in forward]
    return forward + mirrored


def right_by_a_generator_inside(units, prefetch):
    def words(order):
        ahead = iter(order)
        for _ in range(min(prefetch, units)):
            yield f"start {next(ahead)}"
        for unit in order:
            for near in islice(ahead, 1):
                yield f"start {near}"
            yield from (f"wait {unit}", f"use {unit}", f"release {unit}")

    return [*words(range(units)), *words(range(units)[::-1])]


def wrong_forward_only(units, prefetch):
    return _half(list(range(units)), prefetch)


def wrong_backward_in_forward_order(units, prefetch):
    return 2 * _half(list(range(units)), prefetch)


def wrong_no_prefetch(units, prefetch):
    return right_by_halves(units, 0)


def wrong_one_ahead_always(units, prefetch):
    return right_by_halves(units, 1)


def wrong_all_starts_first(units, prefetch):
    return right_by_halves(units, units)


def wrong_one_too_many_ahead(units, prefetch):
    return right_by_halves(units, prefetch + 1)


def wrong_waits_before_it_starts_the_next(units, prefetch):
    out = []
    for order in (list(range(units)), list(range(units))[::-1]):
        started = 0
        for place, unit in enumerate(order):
            if started <= place:
                out.append(f"start {unit}")
                started = place + 1
            out.append(f"wait {unit}")
            while started < units and started <= place + prefetch:
                out.append(f"start {order[started]}")
                started += 1
            out += [f"use {unit}", f"release {unit}"]
    return out


def wrong_releases_at_the_end(units, prefetch):
    out = []
    for word in right_by_halves(units, prefetch):
        if not word.startswith("release"):
            out.append(word)
    return out + [f"release {unit}" for unit in range(units)]


def wrong_last_unit_kept(units, prefetch):
    out = right_by_halves(units, prefetch)
    last = units - 1
    out.remove(f"release {last}")
    where = [i for i, word in enumerate(out) if word == f"start {last}"]
    return [word for i, word in enumerate(out) if i != where[-1]]


def wrong_never_released(units, prefetch):
    return [word for word in right_by_halves(units, prefetch) if not word.startswith("release")]


def wrong_one_string(units, prefetch):
    return ", ".join(right_by_halves(units, prefetch))


def wrong_counts_from_one(units, prefetch):
    return [f"{word.split()[0]} {int(word.split()[1]) + 1}" for word in right_by_halves(units, prefetch)]


def wrong_starts_past_the_end(units, prefetch):
    out = []
    for order in (list(range(units)), list(range(units))[::-1]):
        started = 0
        for place, unit in enumerate(order):
            while started <= place + prefetch:
                out.append(f"start {order[started] if started < units else started}")
                started += 1
            out += [f"wait {unit}", f"use {unit}", f"release {unit}"]
    return out


def wrong_backward_starts_before_forward_is_done(units, prefetch):
    forward, backward = _half(list(range(units)), prefetch), _half(list(range(units))[::-1], prefetch)
    return [*forward[:-1], backward[0], forward[-1], *backward[1:]]


def wrong_farther_units_first(units, prefetch):
    out = right_by_halves(units, prefetch)
    count = min(units, prefetch + 1)
    return out[:count][::-1] + out[count:]


def wrong_a_single_unit_once(units, prefetch):
    return _half([0], prefetch) if units == 1 else right_by_halves(units, prefetch)
