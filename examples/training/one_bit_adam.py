"""Adam whose momentum is compressed once its variance has settled: 1-bit Adam."""

import netsum.torch
from torch.nn.parallel import DistributedDataParallel

import torch


class OneBitAdam(torch.optim.Optimizer):
    """1-bit Adam (Tang et al., ICML 2021): averages the gradients itself, or what it makes of them.

    In the first `warmup_steps` steps, the ranks average their gradients uncompressed, and this is Adam. Afterwards the variance stays
    as it is. Each rank updates the momentum by its own gradient; the ranks average these momenta, compressed with error feedback, and
    all go on with the average. (An average of gradients, compressed, would not do: Adam's variance is not linear in them.)

    model: not in DistributedDataParallel; its weights must be the same on all ranks.
    lr, betas, eps: those of Adam. A scheduler may change `lr`.
    warmup_steps: at least 1. The paper takes 15 to 25 % of all steps, until the variance no longer changes much.
    method, settings: how the momenta are compressed, as for netsum.torch.Compression; "onebit" by default: signs and two scales.

    Call step() on all ranks. If an average is not finite, all ranks skip the step. A gradient that is None counts as zeros.
    """

    def __init__(self, model, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, *, warmup_steps, method="onebit", **settings):
        if isinstance(model, DistributedDataParallel):
            raise TypeError(
                "OneBitAdam takes a model without DistributedDataParallel, which would average all gradients"
            )
        if not (lr >= 0 and all(0 <= beta < 1 for beta in betas) and eps > 0):
            raise ValueError(f"OneBitAdam: lr is {lr}, betas are {betas} and eps is {eps}; they must be those of Adam")
        if warmup_steps < 1:
            raise ValueError(f"warmup_steps is {warmup_steps}; without a step of Adam there is no variance")
        parameters = [p for p in model.parameters() if p.requires_grad]
        super().__init__(parameters, {"lr": lr, "betas": tuple(betas), "eps": eps})
        group = settings.get("group")
        self._warmup_steps = warmup_steps
        self._steps = 0
        self._plain = netsum.torch.Compression(model, "none", group=group)
        self.compression = netsum.torch.Compression(model, method, **settings)
        for parameter in parameters:
            self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)
            self.state[parameter]["exp_avg_sq"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        is_warm = self._steps >= self._warmup_steps
        beta, beta_of_squares = self.param_groups[0]["betas"]
        compression = self.compression if is_warm else self._plain
        averages = []
        for parameter in self.param_groups[0]["params"]:
            mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            averages.append((parameter, mine.lerp_(self.state[parameter]["exp_avg"], beta) if is_warm else mine))
        compression.average(averages)
        if not all(average.isfinite().all() for _, average in averages):
            return loss
        self._steps += 1
        for parameter, average in averages:
            state = self.state[parameter]
            if is_warm:
                state["exp_avg"].copy_(average)
            else:
                state["exp_avg"].lerp_(average, 1 - beta)
                state["exp_avg_sq"].mul_(beta_of_squares).addcmul_(average, average, value=1 - beta_of_squares)
            self._update(parameter, state)
        return loss

    def _update(self, parameter, state):
        options = self.param_groups[0]
        beta, beta_of_squares = options["betas"]
        counted = min(self._steps, self._warmup_steps)  # in the variance
        deviation = (state["exp_avg_sq"] / (1 - beta_of_squares**counted)).sqrt_().add_(options["eps"])
        parameter.addcdiv_(state["exp_avg"], deviation, value=-options["lr"] / (1 - beta**self._steps))

    def state_dict(self):
        """Returns what this rank keeps. Save it on every rank: the momenta are the same, what compression keeps is not."""
        return {**super().state_dict(), "steps": self._steps, "compression": self.compression.state_dict()}

    def load_state_dict(self, state):
        """Continues from a state_dict() for the same model and settings; raises ValueError if it is of others."""
        parameters = self.param_groups[0]["params"]
        saved = [list(one["exp_avg"].shape) for _, one in sorted(state["state"].items())]
        mine = [list(p.shape) for p in parameters]
        if saved != mine:
            raise ValueError(f"the state has momenta of the shapes {saved}, and the model has parameters of {mine}")
        self.compression.load_state_dict(state["compression"])
        super().load_state_dict({"state": state["state"], "param_groups": state["param_groups"]})
        self._steps = state["steps"]
