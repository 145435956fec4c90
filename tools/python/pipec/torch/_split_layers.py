"""Layers whose weight gradients can be computed later than their input gradients.

A layer of a supported class gets a subclass of its own class whose forward, while a recorded
forward runs, keeps the weight out of autograd's graph and queues what the weight's gradient is
made of: the layer's input x and the gradient dy of its output.

* Eager: an autograd function. Its backward returns the gradient of x and queues (x, dy).
* While PyTorch traces the layer for torch.compile: y = x w + zero, where *zero* is an input of one
  element, expanded to y's shape, that requires a gradient: that gradient is dy, an output of the
  compiled backward, and x is an output of the compiled forward.

Outside of a recorded forward the layer does exactly what its own class does. A copy or a pickle of
such a layer is a layer of its own class.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn import grad as convolution

Tensor = torch.Tensor


class Work(NamedTuple):
    """One call of one layer, whose weight gradient is yet to be computed."""

    layer: nn.Module
    x: Tensor  # input of the layer, in the dtype in which it computed
    dy: Tensor  # gradient of its output, in the same dtype
    versions: tuple[int, int]  # of x and dy, when they were queued
    weight: nn.Parameter
    bias: nn.Parameter | None  # None where there is none, or where it is frozen

    @staticmethod
    def of(layer: nn.Module, x: Tensor, dy: Tensor, weight: nn.Parameter,
           bias: nn.Parameter | None) -> "Work":
        # x without its graph, which is to be freed. dy itself, not an alias of it: what somebody
        # else holds does not become the .grad of another tensor, which would change it in place.
        x = x.detach()
        return Work(layer, x, dy, (x._version, dy._version), weight, bias)


class Record:
    """One recorded forward (of one stage and micro-batch) and what its backward queues."""

    def __init__(self) -> None:
        self.done = False  # the input half has run
        self.running = False  # the input half runs now: only its gradients are queued
        self.queue: list[Work] = []
        self.probes: list[tuple[list[Tensor], list[Tensor | None]]] | None = None  # per layer
        self.casts: dict[int, tuple[Tensor, Tensor]] = {}  # inputs of the stage under autocast


class Shapes:
    """Shape and dtype of what each call of a layer returns, as far as calls can have probes."""

    def __init__(self) -> None:
        self.calls: list[tuple[torch.Size, torch.dtype]] = []
        self.checkpointed = False

    def note(self, y: Tensor) -> None:
        if torch.is_grad_enabled():
            self.calls.append((y.shape, y.dtype))
        # What is compiled inside a checkpoint may have no side effects, so x cannot come out.
        frame = sys._getframe()
        while frame is not None and not self.checkpointed:
            self.checkpointed = frame.f_globals.get("__name__") == "torch.utils.checkpoint"
            frame = frame.f_back


class Slot:
    """What a layer's forward needs to know; all None or empty outside of a recorded forward."""

    def __init__(self) -> None:
        self.record: Record | None = None
        self.casts: dict[nn.Parameter, tuple[int, int, Tensor]] | None = None
        self.weight: Tensor | None = None  # detached; None where the layer is not to be split
        self.bias: Tensor | None = None
        self.trained: tuple[nn.Parameter, nn.Parameter | None] | None = None
        self.shapes: Shapes | None = None  # where shapes are to be noted, and nothing else
        self.zeros: list[Tensor] = []  # the probe of each traced call
        self.calls: list[Tensor | None] = []  # x of each traced call; None where it is not split


class LinearKind:
    """nn.Linear: y = x w^T + b, with w of shape [outputs, inputs]."""

    @staticmethod
    def forward(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if x.dim() > 2 and not x.is_contiguous():  # as PyTorch does it where w needs a gradient
            y = torch.matmul(x.reshape(-1, x.shape[-1]), weight.t())
            y = y.view(x.shape[:-1] + y.shape[-1:])
            return y if bias is None else y.add_(bias)
        return F.linear(x, weight, bias)

    @staticmethod
    def traced(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    @staticmethod
    def input_gradient(layer: nn.Module, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        return _product_gradient(x, weight, dy)

    @staticmethod
    def weight_gradient(layer: nn.Module, x: Tensor, dy: Tensor) -> Tensor:
        return _rows(dy).t().mm(_rows(x))

    @staticmethod
    def bias_gradient(layer: nn.Module, dy: Tensor) -> Tensor:
        return _rows(dy).sum(0)


class TransposedKind(LinearKind):
    """transformers' Conv1D: y = x w + b, with w of shape [inputs, outputs]."""

    @staticmethod
    def forward(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = torch.addmm(bias, x.view(-1, x.size(-1)), weight)
        return y.view(x.shape[:-1] + y.shape[-1:])

    traced = forward

    @staticmethod
    def input_gradient(layer: nn.Module, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        return _product_gradient(x, weight.t(), dy)

    @staticmethod
    def weight_gradient(layer: nn.Module, x: Tensor, dy: Tensor) -> Tensor:
        return _rows(x).t().mm(_rows(dy))


class ConvolutionKind:
    """nn.Conv1d, nn.Conv2d and nn.Conv3d whose padding is zeros, given as numbers."""

    @staticmethod
    def forward(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        function = (F.conv1d, F.conv2d, F.conv3d)[len(layer.kernel_size) - 1]
        return function(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)

    traced = forward

    @staticmethod
    def input_gradient(layer: nn.Module, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        dims = len(layer.kernel_size)
        batched = x.unsqueeze(0) if x.dim() == dims + 1 else x
        dy = dy.reshape(batched.shape[:1] + dy.shape[-dims - 1:])
        function = (convolution.conv1d_input, convolution.conv2d_input,
                    convolution.conv3d_input)[dims - 1]
        return function(batched.shape, weight, dy, layer.stride, layer.padding, layer.dilation,
                        layer.groups).view(x.shape)

    @staticmethod
    def weight_gradient(layer: nn.Module, x: Tensor, dy: Tensor) -> Tensor:
        dims = len(layer.kernel_size)
        if x.dim() == dims + 1:
            x, dy = x.unsqueeze(0), dy.unsqueeze(0)
        function = (convolution.conv1d_weight, convolution.conv2d_weight,
                    convolution.conv3d_weight)[dims - 1]
        return function(x, layer.weight.shape, dy, layer.stride, layer.padding, layer.dilation,
                        layer.groups)

    @staticmethod
    def bias_gradient(layer: nn.Module, dy: Tensor) -> Tensor:
        channels = -len(layer.kernel_size) - 1
        return dy.sum([d for d in range(-dy.dim(), 0) if d != channels])


def _rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


def _product_gradient(x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
    """The gradient of x [..., inputs] in y = x weight^T, with the bits of PyTorch's own."""
    if x.dim() == 2 and x.stride(0) == 1 and x.stride(1) == x.size(0):
        return weight.t().mm(dy.t()).t()
    return _rows(dy).mm(weight).view(x.shape)


class _Call(torch.autograd.Function):
    """One call of a layer whose weight gradient is queued. `token` makes y need a gradient where
    x does not: in the first layers of the first stage."""

    @staticmethod
    def forward(ctx, x, weight, bias, token, layer, kind, slot):
        # The tensors of a checkpoint inside the stage are others when it has run again: the
        # parameters, to which gradients are given, are kept by themselves.
        ctx.save_for_backward(x, weight)
        ctx.set_materialize_grads(False)
        ctx.layer, ctx.kind, ctx.record, ctx.trained = layer, kind, slot.record, slot.trained
        return kind.forward(layer, x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        if dy is None:
            return (None,) * 7
        x, weight = ctx.saved_tensors
        if ctx.record.running:
            ctx.record.queue.append(Work.of(ctx.layer, x, dy, *ctx.trained))
        dx = ctx.kind.input_gradient(ctx.layer, x, weight, dy) if ctx.needs_input_grad[0] else None
        return (dx,) + (None,) * 6


def trained(weight: nn.Parameter,
            bias: nn.Parameter | None) -> tuple[nn.Parameter, nn.Parameter | None]:
    """The weight of a layer, and its bias unless that is frozen."""
    return weight, bias if bias is not None and bias.requires_grad else None


def _autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype to which autocast casts x for a product, or None where it leaves x alone."""
    device = x.device.type
    if not torch.is_autocast_enabled(device) or x.dtype == torch.float64:
        return None
    dtype = torch.get_autocast_dtype(device)
    return None if x.dtype == dtype or not x.is_floating_point() else dtype


def _cast_input(record: Record, x: Tensor) -> Tensor:
    """x as autocast would cast it: a leaf once per forward, anything else for each use."""
    dtype = _autocast_dtype(x)
    if dtype is None:
        return x
    if not (x.is_leaf and x.requires_grad and x.dtype == torch.float32
            and torch.is_autocast_cache_enabled()):
        return x.to(dtype)
    if id(x) not in record.casts:
        record.casts[id(x)] = (x, x.to(dtype))
    return record.casts[id(x)][1]


def _cast_parameter(slot: Slot, parameter: nn.Parameter | None, value: Tensor | None) -> Tensor:
    """The value of the parameter as autocast would cast it: once per version of the parameter."""
    if value is None or (dtype := _autocast_dtype(value)) is None:
        return value
    found = slot.casts.get(parameter)
    if found is None or found[:2] != (value._version, value.data_ptr()) or found[2].dtype != dtype:
        found = slot.casts[parameter] = (value._version, value.data_ptr(), value.to(dtype))
    return found[2]


def _eager(layer: nn.Module, kind: Any, slot: Slot, x: Tensor) -> Tensor:
    weight, bias = slot.weight, slot.bias
    if torch.is_autocast_enabled(x.device.type):
        x = _cast_input(slot.record, x)
        weight = _cast_parameter(slot, layer.weight, weight)
        bias = _cast_parameter(slot, layer.bias, bias)
    token = None if x.requires_grad else torch.empty(0, device=x.device, requires_grad=True)
    return _Call.apply(x, weight, bias, token, layer, kind, slot)


def _traced(layer: nn.Module, base: type, slot: Slot, x: Tensor) -> Tensor:
    call = len(slot.calls)
    if call >= len(slot.zeros):
        return base.forward(layer, x)
    zero = slot.zeros[call]
    dtype = _autocast_dtype(x)
    if dtype is not None:
        x = x.to(dtype)
    y = layer._pipec_kind.traced(layer, x, slot.weight, slot.bias)
    if zero.shape != y.shape or zero.dtype != y.dtype:
        slot.calls.append(None)
        return base.forward(layer, x)
    slot.calls.append(x.detach())
    return y + zero


_CLASSES: dict[type, type] = {}


def kind_of(base: type) -> Any:
    """How layers of this class are split, or None."""
    forward = base.forward
    if forward is nn.Linear.forward:
        return LinearKind
    if base in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        return ConvolutionKind
    name = f"{forward.__module__}.{forward.__qualname__}"
    return TransposedKind if name == "transformers.pytorch_utils.Conv1D.forward" else None


def is_split(layer: nn.Module) -> bool:
    return type(layer) in _CLASSES.values()


def split(layer: nn.Module) -> Slot:
    """Gives the layer the class that can be split (once), and returns its slot."""
    if not is_split(layer):
        base = type(layer)
        layer.__class__ = _CLASSES.get(base) or _split_class(base)
        layer.__dict__["_pipec_slot"] = Slot()
    return layer.__dict__["_pipec_slot"]


def unsplit(layer: nn.Module) -> None:
    """Gives the layer its own class again."""
    if is_split(layer):
        layer.__class__ = type(layer).__mro__[1]
        del layer.__dict__["_pipec_slot"]


def _split_class(base: type) -> type:
    kind = kind_of(base)

    class Split(base):
        _pipec_kind = kind

        def forward(self, *args, **kwargs):
            slot = self._pipec_slot
            if slot.shapes is not None:
                y = base.forward(self, *args, **kwargs)
                slot.shapes.note(y)
                return y
            if slot.weight is None or not torch.is_grad_enabled():
                return base.forward(self, *args, **kwargs)
            x = args[0] if args else next(iter(kwargs.values()))
            if torch.compiler.is_compiling():
                return _traced(self, base, slot, x)
            return _eager(self, kind, slot, x)

        def __reduce_ex__(self, protocol):
            state = {k: v for k, v in self.__dict__.items() if k != "_pipec_slot"}
            return object.__new__, (base,), state

    Split.__name__, Split.__qualname__ = base.__name__, base.__qualname__
    _CLASSES[base] = Split
    return Split
