"""Models cut into stages: together they are the model, in numbers, names and size."""

import copy
import pickle
import sys
import unittest
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools/python"))

import torch
from torch import nn

from pipec.torch._cut import cut, ties
from pipec.torch._split import Splitter

try:
    import transformers
except ImportError:
    transformers = None

LAYERS, VOCABULARY = 5, 61


def decoder(family, **more):
    """A model of random weights in double precision."""
    config = transformers.CONFIG_MAPPING[family](
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=None,
        bos_token_id=None, eos_token_id=None, **more)
    for name in ("embd_pdrop", "resid_pdrop", "attn_pdrop", "attention_dropout"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config).double()
    with torch.no_grad():  # nothing may be right by being zero or one
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.05)
    return model.train()


def token_ids():
    return torch.randint(VOCABULARY, (2, 10), generator=torch.Generator().manual_seed(1))


def run(parts, *values):
    for part in parts:
        values = part(*values)
        values = values if isinstance(values, tuple) else (values,)
    return values[0]


def gradients(parts, names):
    """Gradients by name, summed over the stages that hold the name or one tied to it."""
    found = {}
    for part in parts:
        for name, p in part.named_parameters():
            key = names.get(name, name)
            found[key] = p.grad if key not in found else found[key] + p.grad
    return found


@unittest.skipIf(transformers is None, "SKIPPED: transformers is not installed")
class Decoders(unittest.TestCase):
    FAMILIES = (("gpt2", {}), ("llama", {}), ("qwen2", {}), ("qwen3", {}), ("mistral", {}),
                ("llama", {"tie_word_embeddings": True}), ("mistral", {"sliding_window": 4}),
                ("qwen2", {"use_sliding_window": True, "sliding_window": 4,
                           "max_window_layers": 2}))

    def assert_cut(self, model, stages, layers=None, extra={}):
        expected = model(token_ids(), **extra).logits
        parts = [cut(model, stage, stages, layers) for stage in range(stages)]
        logits = run(parts, token_ids(), *extra.values())
        self.assertTrue(torch.equal(logits, expected))
        weight = torch.cos(torch.arange(logits.numel(), dtype=logits.dtype)).view_as(logits)
        (expected * weight).sum().backward()
        (logits * weight).sum().backward()
        tied = {name: tie[0] for tie in ties(model, stages, layers) for name in tie}
        found = gradients(parts, tied)
        for name, p in model.named_parameters():
            scale = p.grad.abs().max()
            self.assertLessEqual((found.pop(name) - p.grad).abs().max(), 1e-12 * scale, name)
        self.assertEqual(found, {})
        return parts

    def test_logits_and_gradients(self):
        for family, more in self.FAMILIES:
            for stages in (1, 2, LAYERS):
                with self.subTest(family, **more, stages=stages), warnings.catch_warnings():
                    warnings.simplefilter("error")
                    self.assert_cut(decoder(family, **more), stages)

    def test_layers_of_each_stage(self):
        for family in ("gpt2", "llama"):
            for layers in ([0, 3, 2], [4, 1, 0], [1, 0, 4], "auto"):
                with self.subTest(family, layers=layers):
                    parts = self.assert_cut(decoder(family), 3, layers)
                    if layers != "auto":
                        name = "transformer.h" if family == "gpt2" else "model.layers"
                        self.assertEqual([len({k.split(".")[2] for k in part.state_dict()
                                               if k.startswith(name)}) for part in parts], layers)

    def test_masks_and_positions_travel(self):
        mask = torch.ones(2, 10, dtype=torch.long)
        mask[0, :3] = 0
        positions = torch.arange(10).expand(2, 10) // 2
        for family in ("gpt2", "llama", "qwen3"):
            with self.subTest(family):
                self.assert_cut(decoder(family), 3, extra={"attention_mask": mask})
                self.assert_cut(decoder(family), 3, extra={"attention_mask": mask,
                                                           "position_ids": positions})
                model = decoder(family)
                parts = [cut(model, stage, 2) for stage in range(2)]
                hidden = parts[0](token_ids(), attention_mask=mask)  # does not travel
                self.assertIsInstance(hidden, tuple)

    def test_state_dicts_are_the_models(self):
        for family, more in self.FAMILIES:
            with self.subTest(family, **more):
                model = decoder(family, **more)
                whole = model.state_dict()
                parts = [cut(model, stage, 3).state_dict() for stage in range(3)]
                merged = {k: v for part in parts for k, v in part.items()}
                self.assertEqual(sum(map(len, parts)), len(merged))  # no name twice
                self.assertEqual(set(merged), set(whole))
                for name, value in merged.items():
                    self.assertTrue(torch.equal(value, whole[name]))
                    self.assertNotEqual(value.data_ptr(), whole[name].data_ptr())
                model.load_state_dict(merged)

    def test_a_stage_copies_only_its_own(self):
        copied = []
        whole = nn.Parameter.__deepcopy__

        def counting(self, memo):
            if id(self) not in memo:
                copied.append(self.numel())
            return whole(self, memo)

        model = decoder("llama")
        own = sum(p.numel() for p in model.model.layers[2].parameters())
        nn.Parameter.__deepcopy__ = counting
        try:
            cut(model, 2, LAYERS)
        finally:
            nn.Parameter.__deepcopy__ = whole
        self.assertEqual(sum(copied), own)

    def test_ties(self):
        self.assertEqual(ties(decoder("llama"), 3), [])
        model = decoder("gpt2")
        tie, = ties(model, 3)
        self.assertEqual((tie, tie.stages), (("transformer.wte.weight", "lm_head.weight"), (0, 2)))
        first, last = (dict(cut(model, stage, 3).named_parameters()) for stage in (0, 2))
        self.assertTrue(torch.equal(first[tie[0]], last[tie[1]]))
        self.assertIsNot(first[tie[0]], last[tie[1]])
        self.assertEqual(ties(model, 1), [])
        only = cut(model, 0, 1)
        self.assertIs(only.lm_head.weight, only.transformer.wte.weight)
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        self.assertEqual(ties(model, 3), [tie])  # tied by its configuration
        model.config.tie_word_embeddings = False
        self.assertEqual(ties(model, 3), [])

    def test_without_a_head(self):
        for family in ("gpt2", "llama"):
            model = decoder(family).base_model
            parts = [cut(model, stage, 2) for stage in range(2)]
            self.assertTrue(torch.equal(run(parts, token_ids()),
                                        model(token_ids()).last_hidden_state))

    def test_meta(self):
        real = decoder("gpt2")
        with torch.device("meta"):
            empty = copy.deepcopy(real).to("meta")
        parts = [cut(empty, stage, 2) for stage in range(2)]
        for part in parts:
            self.assertEqual({p.device.type for p in part.parameters()}, {"meta"})
            part.to_empty(device="cpu")
            part.load_state_dict({k: real.state_dict()[k] for k in part.state_dict()})
        self.assertTrue(torch.equal(run(parts, token_ids()), real(token_ids()).logits))

    def test_copies(self):
        model = decoder("gpt2")
        parts = [cut(model, stage, 2) for stage in range(2)]
        for copies in ([copy.deepcopy(p) for p in parts],
                       [pickle.loads(pickle.dumps(p)) for p in parts]):
            self.assertTrue(torch.equal(run(copies, token_ids()), model(token_ids()).logits))
        self.assertIs(type(model), transformers.GPT2LMHeadModel)

    def test_split_backwards_of_stages(self):
        for checkpoint in (False, True):
            for family in ("gpt2", "llama"):
                with self.subTest(family, checkpoint=checkpoint):
                    model = decoder(family)
                    if checkpoint:
                        model.gradient_checkpointing_enable()
                    one, other = cut(model, 1, 3), cut(model, 1, 3)
                    splitter = Splitter(other)
                    self.assertTrue(all(n.split(".")[3].startswith(("ln_", "input_", "post_"))
                                        for n in splitter.whole), splitter.whole)
                    found, expected = (torch.randn(2, 10, 32, dtype=torch.double, generator=torch
                                                   .Generator().manual_seed(1)).requires_grad_()
                                       for _ in range(2))
                    one(expected).square().sum().backward()
                    output = splitter.forward(0, found).square().sum()
                    splitter.input_half(0, [output], [None])
                    self.assertIsNone(next(p for n, p in other.named_parameters()
                                           if n in splitter.splittable).grad)
                    splitter.weight_half(0)
                    self.assertTrue(torch.equal(found.grad, expected.grad))
                    for p, q in zip(other.parameters(), one.parameters()):
                        self.assertTrue(torch.equal(p.grad, q.grad))

    def test_refused(self):
        model = decoder("llama")
        bert = transformers.BertModel(transformers.BertConfig(
            vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
            intermediate_size=8))
        model_with_more = decoder("llama")
        model_with_more.model.register_parameter("more", nn.Parameter(torch.ones(1)))
        for arguments, word in (
                ((model, 0, 6), r"cut: stages: 6 stages of 5 layers \(at most 5\)"),
                ((model, 2, 2), r"cut: stage: 2 of 2 stages \(0 to 1\)"),
                ((model, -1, 2), r"cut: stage: -1 of 2"),
                ((model, 0, 0), r"cut: stage: 0 of 0"),
                ((model, 0, 2, [2, 2]), r"cut: layers: 2,2 are 2 stages of 4 .*2 stages of 5"),
                ((model, 0, 2, [1, 2, 2]), r"cut: layers: 1,2,2 are 3 stages"),
                ((model, 0, 2, [6, -1]), r"cut: layers: -1 \(numbers from 0\)"),
                ((model, 0, 2, [2.5, 2.5]), r"cut: layers: 2.5"),
                ((model, 0, 2, "even"), r"cut: layers: 'even'"),
                ((bert, 0, 1), r"cut: model: BertModel \(a decoder"),
                ((nn.Linear(1, 1), 0, 1), r"cut: model: Linear \(a decoder"),
                ((7, 0, 1), r"cut: model: int \(a decoder"),
                ((model_with_more, 0, 2), r"cut: model: LlamaForCausalLM has model.more outside")):
            with self.subTest(word), self.assertRaisesRegex(ValueError, word) as caught:
                cut(*arguments)
            self.assertNotIn("\n", str(caught.exception))

    def test_an_untested_family_is_named(self):
        with self.assertWarnsRegex(UserWarning, "Phi3ForCausalLM were never compared"):
            cut(decoder("phi3"), 0, 2)


class Lists(unittest.TestCase):
    def modules(self):
        torch.manual_seed(1)
        return [nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 32),
                nn.Linear(32, 8), nn.Linear(8, VOCABULARY)]

    def test_values_and_names(self):
        modules = self.modules()
        model = nn.Sequential(*modules)
        for given in (model, modules, tuple(modules), nn.ModuleList(modules)):
            for layers in (None, [1, 4, 1], "auto"):
                with self.subTest(type(given).__name__, layers=layers):
                    parts = [cut(given, stage, 3, layers) for stage in range(3)]
                    self.assertTrue(torch.equal(run(parts, token_ids()), model(token_ids())))
                    keys = [key for part in parts for key in part.state_dict()]
                    self.assertEqual(keys, list(model.state_dict()))
                    self.assertIsNot(parts[0][0], modules[0])

    def test_auto_counts_what_multiplies(self):
        parts = [cut(self.modules(), stage, 2, "auto") for stage in range(2)]
        # 72 + 288 parameters before, 264 + 549 behind; the embedding costs nothing.
        self.assertEqual([len(part) for part in parts], [5, 1])
        self.assertEqual([len(cut([nn.Linear(9, 9)] * 5, s, 3, "auto")) for s in range(3)],
                         [1, 2, 2])

    def test_names_of_a_sequential(self):
        model = nn.Sequential()
        model.add_module("stem", nn.Linear(2, 3))
        model.add_module("body", nn.Sequential(nn.Linear(3, 4)))
        self.assertEqual(list(cut(model, 1, 2).state_dict()), ["body.0.weight", "body.0.bias"])

    def test_ties(self):
        shared = nn.Linear(3, 3)
        head = nn.Linear(3, 3, bias=False)
        head.weight = shared.weight
        modules = [shared, nn.Tanh(), shared, head]
        found = ties(modules, 2)
        self.assertEqual([(tie, tie.stages) for tie in found],
                         [(("0.weight", "2.weight"), (0, 1)), (("0.bias", "2.bias"), (0, 1))])
        part = cut(modules, 1, 2)
        self.assertIs(part[0].weight, part[1].weight)
        model = nn.Sequential(*modules)
        self.assertTrue(torch.equal(run([cut(model, s, 2) for s in range(2)], torch.ones(1, 3)),
                                    model(torch.ones(1, 3))))

    def test_refused(self):
        class Own(nn.Sequential):
            def forward(self, x):
                return 2 * super().forward(x)

        for arguments, word in (
                ((self.modules(), 0, 7), r"cut: stages: 7 stages of 6 modules \(at most 6\)"),
                ((self.modules(), 0, 2, [6, 0]), r"cut: layers: stage 1 has none"),
                (([], 0, 1), r"cut: stages: 1 stages of 0 modules"),
                (([nn.Tanh(), 3], 0, 1), r"cut: model: element 1 is a int"),
                ((Own(nn.Tanh()), 0, 1), r"cut: model: Own is an nn.Sequential with a forward")):
            with self.subTest(word), self.assertRaisesRegex(ValueError, word):
                cut(*arguments)


torch.set_num_threads(1)  # of two cores that tests share

if __name__ == "__main__":
    unittest.main()
