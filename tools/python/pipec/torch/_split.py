"""Splits the backward of a stage into its input half and its weight half.

The input half computes the gradients of the stage's inputs, the weight half those of the weights
of its linear layers and convolutions. Between both only the inputs of these layers and the
gradients of their outputs are kept; the rest of the graph is freed. Gradients of other parameters
(norms, embeddings, recurrent layers, computed weights) are computed in the input half.
"""

from __future__ import annotations

from typing import Any, Hashable, Sequence

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pipec.torch import _split_layers as layers
from pipec.torch._split_layers import ConvolutionKind, Record, Shapes, Work

Tensor = torch.Tensor

# Gradients of weights are added to .grad as soon as they have so many bytes together.
_ACCUMULATE_BYTES = 16 << 20


class Splitter:
    """Splits the backward of one stage.

    For a micro-batch whose backward the plan splits, the forward (FW or RE) is run by `forward`,
    BW_input by `input_half` and BW_weight by `weight_half`. Other micro-batches (and CFW) call
    the module itself, and then nothing differs from the module as it was.

    `key` names a micro-batch (anything that can be a key of a dict).

    Attributes:
        module: the stage.
        splittable: names of the parameters whose gradients the weight half computes.
        whole: names of the other parameters that need a gradient. In a compiled stage, `measure`
            moves here what is called in a checkpoint.
    """

    def __init__(self, module: nn.Module, compiled: bool | None = None) -> None:
        """compiled: whether the stage or a part of it is compiled (None: found out, unless the
        module's forward calls a function that is)."""
        self.module = module
        self._is_compiled = compiled
        self._layers, others = _find(module)
        self._slots = [layers.split(layer) for layer in self._layers]
        self._others = [p for p in others.values() if p.requires_grad]
        self._name(self._layers)
        self._records: dict[Hashable, Record] = {}
        self._shapes: dict[Any, list[Shapes]] = {}
        self._casts: dict[nn.Parameter, tuple[int, int, Tensor]] = {}
        self._bases: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    @property
    def compiled(self) -> bool:
        """Whether the stage or a part of it is compiled (by torch.compile or module.compile)."""
        if self._is_compiled is not None:
            return self._is_compiled
        return any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) is not None
                   for m in self.module.modules())

    def measure(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module with these arguments, and returns what it returns.

        To be called once for each signature (shapes and dtypes) of a compiled stage's inputs,
        before `forward`: it notes the shapes that the probes need, without compiling anything.
        Without it nothing is split while the stage is compiled.
        """
        if not self.compiled:
            return self.module(*args, **kwargs)
        shapes = [Shapes() for _ in self._slots]
        with torch.compiler.set_stance("force_eager"), torch.enable_grad():
            self._open(Record(), shapes=shapes)
            try:
                output = self.module(*args, **kwargs)
            finally:
                self._close()
        self._shapes[self._signature(args, kwargs)] = shapes
        self._name([layer for layer, of in zip(self._layers, shapes) if not of.checkpointed])
        return output

    def forward(self, key: Hashable, *args: Any, **kwargs: Any) -> Any:
        """Runs the module with these arguments such that its backward can be split."""
        if key in self._records:
            raise RuntimeError(f"{key}: a second forward before the halves of the first ran")
        record = Record()
        shapes = self._shapes and self._shapes.get(self._signature(args, kwargs))
        if shapes:
            record.probes = [(self._zeros(layer, of), [])
                             for layer, of in zip(self._layers, shapes)]
        self._open(record)
        try:
            output = self.module(*args, **kwargs)
        finally:
            self._close()
        record.casts.clear()
        self._records[key] = record
        return output

    def input_half(self, key: Hashable, outputs: Sequence[Tensor | GradientEdge],
                   gradients: Sequence[Tensor | None],
                   inputs: Sequence[Tensor] = ()) -> tuple[Tensor | None, ...]:
        """Runs the backward from the outputs, but for the weights that can wait.

        outputs and gradients are those of torch.autograd.backward. Returns the gradients of the
        inputs, leaves that require them (also left in .grad).
        """
        record = self._record(key, done=False)
        fresh = [p for p in self._others if p.grad is None]
        self._open(record)
        record.running = True
        try:
            if len(outputs):
                torch.autograd.backward(tuple(outputs), tuple(gradients))
        finally:
            record.running = False
            self._close()
            record.casts.clear()
        record.done = True
        self._collect(record)
        # A gradient that became a parameter's .grad may be a view of a queued one.
        queued = {work.dy.untyped_storage().data_ptr() for work in record.queue}
        for parameter in fresh:
            grad = parameter.grad
            if grad is not None and not grad.is_sparse and _address(grad) in queued:
                parameter.grad = grad.clone()
        return tuple(x.grad for x in inputs)

    def weight_half(self, key: Hashable) -> None:
        """Computes the gradients that input_half left, and adds them to .grad."""
        record = self._record(key, done=True)
        del self._records[key]
        shares: dict[nn.Parameter, list[Work]] = {}
        for work in record.queue:
            shares.setdefault(work.weight, []).append(work)
            if work.bias is not None:
                shares.setdefault(work.bias, []).append(work)
        record.queue.clear()
        ready: list[tuple[GradientEdge, Tensor]] = []
        ready_bytes = 0
        with torch.enable_grad():  # for the edges; the gradients themselves need none
            for parameter in list(shares):
                works = shares.pop(parameter)
                total = _gradient(works.pop(0), parameter)
                while works:
                    total.add_(_gradient(works.pop(0), parameter))
                total = total.to(parameter.dtype).view(parameter.shape)
                ready.append((get_gradient_edge(parameter), total))
                ready_bytes += total.nbytes
                if ready_bytes >= _ACCUMULATE_BYTES or not shares:
                    torch.autograd.backward(*zip(*ready))  # so that hooks on parameters run
                    ready.clear()
                    ready_bytes = 0

    def whole_backward(self, key: Hashable, outputs: Sequence[Tensor | GradientEdge],
                       gradients: Sequence[Tensor | None],
                       inputs: Sequence[Tensor] = ()) -> tuple[Tensor | None, ...]:
        """Both halves, for a forward that was recorded though its backward is not split."""
        result = self.input_half(key, outputs, gradients, inputs)
        self.weight_half(key)
        return result

    def drop(self, key: Hashable) -> None:
        """Forgets a recorded forward whose backward will not run."""
        self._records.pop(key, None)

    def pending(self) -> list[tuple[Hashable, str]]:
        """The recorded forwards that are not over, each with the instruction that is missing."""
        return [(key, "BW_weight" if record.done else "BW_input")
                for key, record in self._records.items()]

    def work_bytes(self, key: Hashable) -> int:
        """Bytes that wait for the weight half; what several layers share counts once."""
        storages = {storage.data_ptr(): storage.nbytes()
                    for work in self._record(key, done=True).queue
                    for storage in (work.x.untyped_storage(), work.dy.untyped_storage())}
        return sum(storages.values())

    def clear_casts(self) -> None:
        """Drops the low-precision copies of weights that were made under autocast; to be called
        where torch.clear_autocast_cache() is."""
        self._casts.clear()

    def remove(self) -> None:
        """Makes the layers of the module what they were."""
        for layer in self._layers:
            layers.unsplit(layer)

    def _name(self, split: list[nn.Module]) -> None:
        deferred = {id(p) for layer in split if layer.weight.requires_grad
                    for p in layers.trained(layer.weight, layer.bias) if p is not None}
        self.splittable: list[str] = []
        self.whole: list[str] = []
        for name, p in self.module.named_parameters():
            if p.requires_grad:
                names = self.splittable if id(p) in deferred else self.whole
                names.append(name.replace("_orig_mod.", ""))

    def _record(self, key: Hashable, done: bool) -> Record:
        record = self._records.get(key)
        if record is None or record.done != done:
            half, state = ("weight", "input half") if done else ("input", "recorded forward")
            raise RuntimeError(f"{key}: no {state} to run the {half} half of (pending: "
                               f"{', '.join(f'{k} {v}' for k, v in self.pending()) or 'nothing'})")
        return record

    def _open(self, record: Record, shapes: list[Shapes] | None = None) -> None:
        """From here on, calls of the layers belong to the record."""
        for i, (layer, slot) in enumerate(zip(self._layers, self._slots)):
            weight = layer.weight
            if not isinstance(weight, nn.Parameter) or not weight.requires_grad:
                continue  # frozen, or computed by now
            bias = layer.bias
            slot.record, slot.casts = record, self._casts
            slot.trained = layers.trained(weight, bias)
            slot.weight, slot.bias = weight.detach(), None if bias is None else bias.detach()
            if shapes is not None:
                slot.shapes = shapes[i]
            elif record.probes is not None:
                slot.zeros, slot.calls = record.probes[i]

    def _close(self) -> None:
        """The calls are over."""
        for slot in self._slots:
            slot.__init__()

    def _zeros(self, layer: nn.Module, shapes: Shapes) -> list[Tensor]:
        """The probes of a layer: tensors of one element, expanded. y + -0.0 is y, to the bit."""
        device, zeros = layer.weight.device, []
        for shape, dtype in () if shapes.checkpointed else shapes.calls:
            base = self._bases.get((dtype, device))
            if base is None:
                base = self._bases[dtype, device] = torch.full((), -0.0, dtype=dtype, device=device)
            zeros.append(base.expand(shape).requires_grad_())
        return zeros

    def _collect(self, record: Record) -> None:
        """Queues what the probes of a compiled stage have received."""
        for layer, (zeros, calls) in reversed(list(zip(self._layers, record.probes or ()))):
            for x, zero in reversed(list(zip(calls, zeros))):
                if zero.grad is not None:
                    record.queue.append(Work.of(layer, x, zero.grad,
                                                *layers.trained(layer.weight, layer.bias)))
        record.probes = None

    def _signature(self, args: Any, kwargs: Any) -> Any:
        autocast = tuple((d, torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")
                         if torch.is_autocast_enabled(d))
        return _signature(args), _signature(kwargs), self.module.training, autocast


def _find(module: nn.Module) -> tuple[list[nn.Module], dict[int, nn.Parameter]]:
    """The layers to split, and the parameters (by id) that other modules hold."""
    found: list[nn.Module] = []
    others: dict[int, nn.Parameter] = {}
    direct = {id(m.out_proj) for m in module.modules() if isinstance(m, nn.MultiheadAttention)}
    for m in module.modules():
        if id(m) not in direct and _can_split(m):
            found.append(m)
        else:
            others.update((id(p), p) for p in m.parameters(recurse=False))
    # A parameter that another module uses, too (an embedding), gets its gradient at once, in the
    # order of one backward.
    split = [m for m in found if id(m.weight) not in others and id(m.bias) not in others]
    for m in found:
        if m not in split:
            others.update((id(p), p) for p in m.parameters(recurse=False))
    return split, others


def _can_split(m: nn.Module) -> bool:
    if layers.is_split(m):
        return type(m.weight) is nn.Parameter
    kind = layers.kind_of(type(m))
    own = dict(m.named_parameters(recurse=False))
    if kind is None or "forward" in m.__dict__ or type(own.get("weight")) is not nn.Parameter:
        return False
    if m.bias is not None and type(own.get("bias")) is not nn.Parameter:
        return False
    return kind is not ConvolutionKind or (m.padding_mode == "zeros"
                                           and not isinstance(m.padding, str))


def _gradient(work: Work, parameter: nn.Parameter) -> Tensor:
    if (work.x._version, work.dy._version) != work.versions:
        raise RuntimeError(f"{type(work.layer).__name__}: its input or its output's gradient was "
                           "changed in place between BW_input and BW_weight")
    kind = work.layer._pipec_kind
    if parameter is work.weight:
        return kind.weight_gradient(work.layer, work.x, work.dy)
    return kind.bias_gradient(work.layer, work.dy)


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _signature(value: Any) -> Any:
    """Something hashable that is equal where all tensors have equal shapes and dtypes."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, (tuple, list)):
        return tuple(map(_signature, value))
    if isinstance(value, dict):
        return tuple((k, _signature(v)) for k, v in value.items())
    return value if isinstance(value, (int, float, str, bool, type(None))) else type(value)
