"""tools/tokens with tokenizers that the library `tokenizers` makes, and beside transformers where
that is there. Run by tokens_test.sh."""

import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokens import token_file

TOOL = Path(os.environ["TOKENS"])
TEXTS = [
    "The quick brown fox jumps over the lazy dog.\n\nHello, world!  It's 3 o'clock. ",
    "def f(x):\n    return x + 1\n",
    "Füße, 你好, ナ, 🙂 and e\u0301",
    " user assistant system tool\n",
] * 3
SPECIALS = ["<|endoftext|>", "<s>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LABELS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
MARKED = (
    "{{ bos_token }}{%- for m in messages %}\n  {%- if m.role == 'assistant' %}\n<|im_start|>assistant\n"
    "{% generation %}{{ m.content | trim }}<|im_end|>{% endgeneration %}\n  {%- else %}\n<|im_start|>{{ m.role }} "
    "{{ tools | tojson if tools else '' }}\n{{ m.content }}<|im_end|>\n  {%- endif %}\n{%- endfor %}"
)


def byte_level(folder, bos=False, **config):
    """As GPT-2 and Qwen have it, with a post-processor that takes blanks off the offsets."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIALS,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A <|endoftext|>", special_tokens=[("<s>", 1), ("<|endoftext|>", 0)]
        )
    return save(tokenizer, folder, config)


def with_blanks(folder, **config):
    """As SentencePiece's: a blank before each text, no words, bytes of what is no token."""
    pieces = (
        ["<unk>", *SPECIALS]
        + [f"<0x{i:02X}>" for i in range(256)]
        + sorted({c for t in TEXTS for c in t if c.isascii()} | {"▁"})
    )
    merges = [("▁", "t"), ("t", "h"), ("th", "e"), ("▁", "a"), ("e", "▁")]
    vocab = {
        piece: i for i, piece in enumerate(dict.fromkeys(pieces + ["".join(pair) for pair in merges]))
    }
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(SPECIALS)
    return save(tokenizer, folder, config)


def save(tokenizer, folder, config):
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "eos_token": {"__type": "AddedToken", "content": "<|endoftext|>"},
        "bos_token": "<s>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        **config,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.rng = random.Random(3)

    def text(self, longest=60):
        return "".join(
            self.rng.choice(TEXTS)[self.rng.randrange(20) :][: self.rng.randrange(1, 30)]
            for _ in range(self.rng.randint(1, longest // 20))
        )

    def tool(self, *arguments, data=None, status=0):
        run = subprocess.run(
            [TOOL, *map(str, arguments)],
            cwd=self.folder,
            input=data,
            capture_output=True,
            text=True,
            env=dict(os.environ, PYTHON=sys.executable),
        )
        self.assertEqual(run.returncode, status, run.stderr)
        return run.stderr if status else run.stdout

    def write(self, lines):
        path = self.folder / "in.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def documents(self):
        reader = token_file.Reader(str(self.folder / "out"))
        return [tuple(map(np.ndarray.tolist, reader.document(i))) for i in range(reader.documents)]


class TextsTest(Case):
    def test_round_trip(self):
        for make in (byte_level, with_blanks):
            tokenizer = make(self.folder / make.__name__)
            texts = [self.text() for _ in range(200)]
            self.tool(
                self.write([{"text": text} for text in texts]), "--tokenizer", make.__name__, "-o", "out"
            )
            for text, (ids, _) in zip(texts, self.documents(), strict=True):
                self.assertEqual(
                    ids, tokenizer.encode(text).ids + [tokenizer.token_to_id("<|endoftext|>")]
                )
            printed = self.tool("--decode", "out", "--tokenizer", make.__name__, "--documents", 2)
            about = [
                f"document {i}: {len(ids)} tokens, {len(ids)} count\n"
                for i, (ids, _) in enumerate(self.documents())
            ]
            self.assertEqual(printed, "".join(f"{about[i]}{texts[i]}<|endoftext|>\n" for i in range(2)))
            numbers = " ".join(map(str, tokenizer.encode("Hello, world!").ids))
            self.assertEqual(
                self.tool("--decode", "-", "--tokenizer", make.__name__, data=f"sample: {numbers}|\n"),
                "Hello, world!\n",
            )

    def test_first_and_last_token_stand_once(self):
        """The post-processor would add the end, too."""
        tokenizer = byte_level(self.folder / "bos", bos=True)
        self.tool(self.write([{"text": "fox"}, {"text": "<s>fox"}]), "--tokenizer", "bos", "-o", "out")
        for ids, _ in self.documents():
            self.assertEqual(ids, tokenizer.encode("fox").ids)
        self.tool(
            self.write([{"prompt": "The", "completion": " dog"}]), "--tokenizer", "bos", "-o", "out"
        )
        the, dog = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("The", " dog"))
        self.assertEqual(
            self.documents(), [([1, *the, *dog, 0], [False] * (1 + len(the)) + [True] * (len(dog) + 1))]
        )

    def test_a_long_text(self):
        """Three pieces, for a tokenizer with words; in one, for one without."""
        text = "".join(self.rng.choice(TEXTS) for _ in range(18_000))
        self.assertGreater(len(text), 1 << 19)
        (self.folder / "long.txt").write_text(text)
        for make in (byte_level, with_blanks):
            tokenizer = make(self.folder / make.__name__)
            self.tool("long.txt", "--tokenizer", make.__name__, "-o", "out")
            wanted = tokenizer.encode(text).ids + [tokenizer.token_to_id("<|endoftext|>")]
            self.assertTrue(self.documents()[0][0] == wanted)  # of which no difference is printed


class ChatsTest(Case):
    def chats(self):
        roles = ["system", "user", "assistant", "user", "assistant"]
        return [
            [{"role": role, "content": self.text()} for role in roles[: self.rng.choice([3, 5])]]
            for _ in range(100)
        ]

    def test_what_counts(self):
        """With templates without marks: the texts of the runs that count. A blank before the assistant's
        first word, which the template of LABELS has, and that word are one token, which counts."""
        for make, template in itertools.product((byte_level, with_blanks), (CHATML, LABELS)):
            name = f"{make.__name__}-{len(template)}"
            tokenizer = make(self.folder / name, chat_template=template)
            before, after = (
                ("<|im_start|>{}\n", "<|im_end|>\n") if template == CHATML else ("{}: ", "\n")
            )
            chats = self.chats()
            self.tool(
                self.write([{"messages": chat} for chat in chats]), "--tokenizer", name, "-o", "out"
            )
            for chat, (ids, counts) in zip(chats, self.documents(), strict=True):
                text = "".join(before.format(m["role"]) + m["content"] + after for m in chat)
                self.assertEqual(
                    ids,
                    tokenizer.encode(text, add_special_tokens=False).ids
                    + [tokenizer.token_to_id("<|endoftext|>")],
                )
                ends = [after.removesuffix("\n") or "\n"] * len(chat)
                ends[-1] += "<|endoftext|>" if template == LABELS else ""
                wanted = [m["content"] + end for m, end in zip(chat, ends) if m["role"] == "assistant"]
                runs = [
                    [token for token, _ in run]
                    for does_count, run in itertools.groupby(zip(ids, counts), lambda pair: pair[1])
                    if does_count
                ]
                for run, said in zip(runs, wanted, strict=True):
                    got = tokenizer.decode(run, skip_special_tokens=False)
                    if not tokenizer.decode(run[:1], skip_special_tokens=False).strip():
                        self.assertTrue(said.endswith(got), (got, said))
                    self.assertEqual(got.lstrip(), said.lstrip())

    def test_errors(self):
        byte_level(self.folder / "none")
        byte_level(self.folder / "bad", chat_template="{% for %}")
        byte_level(
            self.folder / "refuses", chat_template="{{ raise_exception('no ' + messages[0].role) }}"
        )
        path = self.write([{"messages": [{"role": "user", "content": "a"}]}])
        for name, error in (
            (
                "none",
                "none: has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json)",
            ),
            ("bad", 'bad/tokenizer_config.json: the chat template: "Expected'),
            ("refuses", f"{path}:1: the chat template refuses 1 messages: 'no user'"),
            ("nix", "nix/tokenizer.json: No such file or directory ("),
        ):
            printed = self.tool(path, "--tokenizer", name, "-o", "out", status=2)
            self.assertTrue(printed.startswith("tools/tokens: error: " + error), printed)
            self.assertEqual(printed.count("\n"), 1)
        (self.folder / "nix").mkdir()
        for content in ("{}", "[]", "{", '{"model": {"type": "BPE"}}'):
            (self.folder / "nix/tokenizer.json").write_text(content)
            self.assertTrue(
                self.tool(path, "--tokenizer", "nix", "-o", "out", status=2).startswith(
                    "tools/tokens: error: nix/tokenizer.json: "
                )
            )
        self.assertFalse((self.folder / "out").exists())

    def test_templates_that_are_none(self):
        path = self.write([{"messages": [{"role": "user", "content": "a"}]}])
        byte_level(self.folder / "latin")
        (self.folder / "latin/chat_template.jinja").write_bytes(b"\xe9")
        byte_level(self.folder / "folder")
        (self.folder / "folder/chat_template.jinja").mkdir()
        none = "has no chat template ("
        bad = "/tokenizer_config.json: the chat template: "
        for name, template, error in (
            ("latin", None, "/chat_template.jinja: byte 0 is no UTF-8 (a chat template)"),
            ("folder", None, "/chat_template.jinja: Is a directory (a file that can be read)"),
            ("a", [{"name": "default"}], f": {none}"),
            ("b", [{"template": "a"}], f": {none}"),
            ("c", ["default"], f": {none}"),
            ("d", "{{ " + "(" * 9999 + " }}", bad),
            ("e", "{% break %}", bad),
        ):
            if template:
                byte_level(self.folder / name, chat_template=template)
            printed = self.tool(path, "--tokenizer", name, "-o", "out", status=2)
            self.assertTrue(printed.startswith(f"tools/tokens: error: {name}{error}"), printed)
            self.assertEqual(printed.count("\n"), 1)
        (self.folder / "a/tokenizer_config.json").write_text('{"a":' * 9999)
        printed = self.tool(path, "--tokenizer", "a", "-o", "out", status=2)
        self.assertTrue(printed.startswith("tools/tokens: error: a/tokenizer_config.json: is no JSON"))

    def test_half_of_a_character_is_no_token(self):
        byte_level(self.folder / "half", eos_token="\ud800")
        printed = self.tool(
            self.write([{"text": "a"}]), "--tokenizer", "half", "-o", "out", status=2
        )
        self.assertIn("--eos: '\\ud800' is no token of the tokenizer", printed)

    def test_beside_transformers(self):
        try:
            from transformers import AutoTokenizer
        except ImportError:
            print("SKIPPED: transformers is not there (tools/torch_python takes it from PyPI)")
            return
        byte_level(self.folder / "marked", bos=True)
        (self.folder / "marked/chat_template.jinja").write_text(MARKED)
        theirs = AutoTokenizer.from_pretrained(self.folder / "marked")
        tools = [{"type": "function", "function": {"name": "<é>", "parameters": {}}}]
        lines = [
            {"messages": chat} | ({"tools": tools} if i % 2 else {})
            for i, chat in enumerate(self.chats())
        ]
        self.tool(self.write(lines), "--tokenizer", "marked", "-o", "out")
        for line, (ids, counts) in zip(lines, self.documents(), strict=True):
            wanted = theirs.apply_chat_template(
                line["messages"],
                line.get("tools"),
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
            self.assertEqual(ids, wanted["input_ids"] + [0])
            self.assertEqual(counts, [bool(c) for c in wanted["assistant_masks"]] + [False])


if __name__ == "__main__":
    unittest.main()
