import torch


class _Base(Engine):
    stage = "ddp"

    def own(self, flat):
        return flat.whole

    def reduce(self, flat, gradient):
        return all_reduce(gradient)

    def keep(self, flat, gradient):
        flat.mean = gradient.div_(self.world_size)

    def publish(self):
        pass


class right_plain(_Base):
    pass


class right_without_a_stage(_Base):
    stage = "mine"


class right_divides_before(_Base):
    def reduce(self, flat, gradient):
        gradient.div_(self.world_size)
        return all_reduce(gradient)

    def keep(self, flat, gradient):
        flat.mean = gradient


class right_with_properties(_Base):
    def own(self, flat):
        self.seen = [*getattr(self, "seen", []), flat.layout.name]
        return flat.whole[:]

    def keep(self, flat, gradient):
        flat.mean = torch.mul(gradient, 1 / self.world_size, out=gradient)


class right_returns_more_than_asked(_Base):
    def keep(self, flat, gradient):
        flat.mean = gradient.div_(self.world_size)
        return flat.mean

    def publish(self):
        return []


class right_with_a_name(_Base):
    def reduce(self, flat, gradient):
        exchange = all_reduce(gradient, name=flat.layout.name)
        return exchange


class wrong_reduce_returns_nothing(_Base):
    """`reduce` returned nothing; it should return the exchange"""

    def reduce(self, flat, gradient):
        all_reduce(gradient).wait()


class wrong_reduce_returns_the_gradient(_Base):
    """`reduce` returned a Tensor; it should return the exchange"""

    def reduce(self, flat, gradient):
        all_reduce(gradient).wait()
        return gradient


class wrong_own_returns_nothing(_Base):
    """`own` returned nothing"""

    def own(self, flat):
        flat.whole


class wrong_sum(_Base):
    def keep(self, flat, gradient):
        flat.mean = gradient


class wrong_divided_by_two(_Base):
    """divided by 2, not by `world_size`"""

    def keep(self, flat, gradient):
        flat.mean = gradient.div_(2)


class wrong_second_gradient(_Base):
    """`div_` does not"""

    def keep(self, flat, gradient):
        flat.mean = gradient / self.world_size


class wrong_keep_returns_the_mean(_Base):
    """`keep` left nothing in `flat.mean`"""

    def keep(self, flat, gradient):
        return gradient.div_(self.world_size)


class wrong_a_copy_is_owned(_Base):
    def own(self, flat):
        return flat.whole.clone()


class wrong_a_part_is_owned(_Base):
    def own(self, flat):
        return flat.part(flat.whole)

    def keep(self, flat, gradient):
        flat.mean = flat.part(gradient).div_(self.world_size)


class wrong_reduce_scatter(_Base):
    """got the mean in shard 0 alone"""

    def reduce(self, flat, gradient):
        return reduce_scatter(gradient)


class wrong_no_reduction(_Base):
    def reduce(self, flat, gradient):
        return all_reduce(gradient.clone())


class wrong_publishes_parameters(_Base):
    def publish(self):
        for flat in self.trainable:
            all_reduce(flat.whole).wait()


class wrong_keeps_gradients_as_numpy(_Base):
    """outside of torch"""

    def keep(self, flat, gradient):
        self.history = [*getattr(self, "history", []), gradient.numpy().copy()]
        flat.mean = gradient.div_(self.world_size)


class wrong_mean_is_a_number(_Base):
    """`keep` left a tensor of shape [] in `flat.mean`"""

    def keep(self, flat, gradient):
        flat.mean = gradient.mean()


class wrong_a_part_is_owned_and_the_whole_mean_kept(_Base):
    """in `flat.mean`; that which `own` returned has the shape"""

    def own(self, flat):
        return flat.part(flat.whole)


from zerolab.exercises.ddp_engine import MyDDP


class wrong_derived_from_the_shipped_solution(MyDDP):
    """write your own"""
