def right_by_formula(op, nbytes, ranks, latency, bandwidth):
    turns = (ranks - 1) * (2 if op == "all_reduce" else 1)
    return turns * (latency + nbytes / ranks / bandwidth)


def right_by_turns(op, nbytes, ranks, latency, bandwidth):
    seconds = 0.0
    for _ in range(2 if op == "all_reduce" else 1):
        for _ in range(ranks - 1):
            seconds += latency + nbytes / (ranks * bandwidth)
    return seconds


def right_terms_apart(op, nbytes, ranks, latency, bandwidth):
    half = (ranks - 1) * latency + (ranks - 1) / ranks * nbytes / bandwidth
    return {"reduce_scatter": half, "all_gather": half, "all_reduce": half + half}[op]


def right_as_a_tensor_without_dimensions(op, nbytes, ranks, latency, bandwidth):
    turns = torch.tensor(float(ranks - 1), dtype=torch.float64) * (2 if op == "all_reduce" else 1)
    return turns * (latency + nbytes / ranks / bandwidth)


def right_by_numpy(op, nbytes, ranks, latency, bandwidth):
    return np.float64(1 + (op == "all_reduce")) * (ranks - 1) * (latency + np.float64(nbytes) / ranks / bandwidth)


def right_as_a_fraction(op, nbytes, ranks, latency, bandwidth):
    return (
        (1 + (op == "all_reduce")) * (ranks - 1) * (Fraction(latency) + Fraction(nbytes, ranks) / Fraction(bandwidth))
    )


def wrong_latency_once(op, nbytes, ranks, latency, bandwidth):
    k = 2 if op == "all_reduce" else 1
    return latency + k * (ranks - 1) / ranks * nbytes / bandwidth


def wrong_no_latency(op, nbytes, ranks, latency, bandwidth):
    return (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks * nbytes / bandwidth


def wrong_whole_buffer_each_turn(op, nbytes, ranks, latency, bandwidth):
    return (2 if op == "all_reduce" else 1) * (ranks - 1) * (latency + nbytes / bandwidth)


def wrong_all_reduce_as_one(op, nbytes, ranks, latency, bandwidth):
    return (ranks - 1) * (latency + nbytes / ranks / bandwidth)


def wrong_n_turns(op, nbytes, ranks, latency, bandwidth):
    return (2 if op == "all_reduce" else 1) * ranks * (latency + nbytes / ranks / bandwidth)


def wrong_alone_takes_a_message(op, nbytes, ranks, latency, bandwidth):
    return (2 if op == "all_reduce" else 1) * max(1, ranks - 1) * (latency + nbytes / ranks / bandwidth)


def wrong_at_once(op, nbytes, ranks, latency, bandwidth):
    return (2 if op == "all_reduce" else 1) * (latency + nbytes / ranks / bandwidth) if ranks > 1 else 0.0


def wrong_whole_over_link(op, nbytes, ranks, latency, bandwidth):
    return (2 if op == "all_reduce" else 1) * ((ranks - 1) * latency + nbytes / bandwidth)


def wrong_parts_of_n_minus_one(op, nbytes, ranks, latency, bandwidth):
    return (
        0
        if ranks == 1
        else (2 if op == "all_reduce" else 1) * (ranks - 1) * (latency + nbytes / (ranks - 1) / bandwidth)
    )


def wrong_log_tree(op, nbytes, ranks, latency, bandwidth):
    return (2 if op == "all_reduce" else 1) * math.log2(ranks) * (latency + nbytes / ranks / bandwidth)


def wrong_bits(op, nbytes, ranks, latency, bandwidth):
    return (2 if op == "all_reduce" else 1) * (ranks - 1) * (latency + 8 * nbytes / ranks / bandwidth)


def wrong_in_milliseconds(op, nbytes, ranks, latency, bandwidth):
    return 1000 * right_by_formula(op, nbytes, ranks, latency, bandwidth)


def wrong_whole_bytes_a_message(op, nbytes, ranks, latency, bandwidth):
    return (2 if op == "all_reduce" else 1) * (ranks - 1) * (latency + (nbytes // ranks + 1000) / bandwidth)


def wrong_of_two_ranks_one_way(op, nbytes, ranks, latency, bandwidth):
    return right_by_formula("all_gather" if ranks == 2 else op, nbytes, ranks, latency, bandwidth)
