"""Several processes that train one model, as ``torchrun`` starts them; or just one.

Gradients are summed in one buffer of fixed layout after the backward pass.
``DistributedDataParallel`` would overlap the two, but lays its buckets out anew after the first
step, so that a resumed run with three or more processes would add in another order and lose the
same bits. For heads of some ten million weights the sum takes milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from haystack.devices import usable_device
from haystack.errors import HaystackError, InputError

Result = TypeVar("Result")


class Processes:
    """The processes of a run, of which this is one; every method is called by all of them.

    Args:
        rank: this one's number.
        count: how many there are.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count

    @property
    def is_first(self) -> bool:
        """Whether this one writes files and speaks."""
        return self.rank == 0

    def share(self, items: Sequence[Any]) -> Sequence[Any]:
        """This process's part of the items; shares differ by at most one item."""
        return items[self.rank :: self.count]

    def sum(self, numbers: Sequence[float], device: torch.device) -> list[float]:
        """The sum of each number over all processes, sent from where the model is."""
        if self.count == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace every gradient by its sum; a parameter that nobody used keeps none."""
        if self.count == 1:
            return
        size = sum(parameter.numel() for parameter in parameters)
        buffer = torch.zeros(size + len(parameters), device=parameters[0].device)
        places = buffer[:size].split([parameter.numel() for parameter in parameters])
        used = buffer[size:]
        for number, (place, parameter) in enumerate(zip(places, parameters, strict=True)):
            if parameter.grad is not None:
                place.copy_(parameter.grad.flatten())
                used[number] = 1
        dist.all_reduce(buffer)
        for place, parameter, users in zip(places, parameters, used.tolist(), strict=True):
            parameter.grad = place.view_as(parameter).clone() if users else None

    def take_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Give all processes the first one's values, in place.

        Args:
            tensors: of the same shapes and dtypes, in the same order, in every process.
        """
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)

    def ask_first(self, work: Callable[[], Result]) -> Result:
        """Let the first process do something, and give all of them its result or its error.

        Raises:
            HaystackError: what the first one raised.
        """
        if self.count == 1:
            return work()
        answer: list[Any] = [None, None]
        if self.is_first:
            try:
                answer[0] = work()
            except HaystackError as error:
                answer[1] = (isinstance(error, InputError), str(error))
        dist.broadcast_object_list(answer, 0)
        if answer[1] is not None:
            is_input, message = answer[1]
            raise (InputError if is_input else HaystackError)(message)
        return answer[0]


@contextmanager
def joined(device: str) -> Iterator[tuple[Processes, torch.device]]:
    """Join the other processes of ``torchrun``, if there are any.

    Args:
        device: as configured; ``cuda`` becomes this process's own GPU.

    Yields:
        The processes and this one's device.

    Raises:
        InputError: the device cannot be used, or there are fewer GPUs than processes.
    """
    starts = "WORLD_SIZE" in os.environ
    chosen = usable_device(_own_gpu() if starts and device == "cuda" else device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if dist.is_available() and dist.is_initialized():
        yield Processes(dist.get_rank(), dist.get_world_size()), chosen
    elif starts and int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
        try:
            yield Processes(dist.get_rank(), dist.get_world_size()), chosen
        finally:
            dist.destroy_process_group()
    else:
        yield Processes(), chosen


def _own_gpu() -> str:
    local, found = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if found and local >= found:
        raise InputError(
            f"expected a GPU for each process, got {found} for process {local}; start fewer with "
            "--nproc-per-node"
        )
    return f"cuda:{local}"


class _Sum(torch.autograd.Function):
    """Sum over processes; the gradient of a sum that all of them use is summed as well."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class _SharedNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation over the batch of all processes; also on the CPU.

    PyTorch's ``SyncBatchNorm`` does the same for GPUs only.
    """

    def _check_input_dim(self, input: Tensor) -> None:  # any: channels stand second
        return

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        values = input.float()
        dims = [dim for dim in range(values.dim()) if dim != 1]
        shape = [1, -1, *[1] * (values.dim() - 2)]
        count = values.new_full((1,), values.numel() / values.shape[1])
        sums = _Sum.apply(torch.cat([values.sum(dims), count]))
        total = sums[-1].detach()
        mean = sums[:-1] / total
        centred = values - mean.view(shape)
        variance = _Sum.apply((centred * centred).sum(dims)) / total
        self._remember(mean.detach(), variance.detach() * total / (total - 1).clamp(min=1))
        normal = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(input.dtype)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1 / float(self.num_batches_tracked or 1)
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance, momentum)


@contextmanager
def shared_norms(model: nn.Module, processes: Processes) -> Iterator[None]:
    """Inside the block, batch normalisations that train see the batch of all processes.

    Weights, their names and the modules stay the same; only their class changes for a while.
    """
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    norms = [module for module in model.modules() if type(module) in kinds]
    before = [type(module) for module in norms]
    if processes.count > 1:
        for module in norms:
            module.__class__ = _SharedNorm
    try:
        yield
    finally:
        for module, kind in zip(norms, before, strict=True):
            module.__class__ = kind
