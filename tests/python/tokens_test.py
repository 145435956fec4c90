"""tools/tokens: what it writes, byte by byte, against a plain loop; with a stand-in tokenizer, so that
Debian's Python with numpy runs it. tokens_real_test.py has real ones."""

import argparse
import contextlib
import io
import json
import os
import random
import resource
import struct
import tempfile
import tracemalloc
import unittest
from pathlib import Path
from unittest import mock

import numpy as np

import tokens
from tokens import __main__ as command
from tokens import decoding, examples, pieces, sources, token_file
from tokens.chats import Chats
from tokens_standin import END, SPECIALS, Letters, Turns, plain_document, plain_file

LETTERS = "abc\n  déz"


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        self.folder = Path(folder.name)
        os.chdir(self.folder)
        self.rng = random.Random(7)

    def text(self, longest=40):
        return "".join(self.rng.choices(LETTERS, k=self.rng.randint(1, longest)))

    def write(self, name, lines):
        Path(name).write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")

    def make(self, *names, tokenizer=None, how="plain", pad=0, output="out", eos=None, lengths=None):
        """What it prints; the file is `out`."""
        options = argparse.Namespace(
            sources=list(names), output=output, pad=pad, eos=eos, lengths=lengths
        )
        out, self.notes = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(self.notes):
            command.make(options, tokenizer or Letters(), lambda: Turns(how), out)
        return out.getvalue()

    def refused(self, line, *names, **options):
        before = sorted(os.listdir())
        with self.assertRaises(tokens.Refusal) as caught:
            self.make(*names, **options)
        self.assertEqual(str(caught.exception), line)
        self.assertEqual(sorted(os.listdir()), before)


class WriterTest(Case):
    def test_every_length_around_a_word_and_a_block(self):
        for count in (1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 4095, 4096, 4097, 8191, 8192, 8193, 12288):
            for size in (300, 70000):
                document = [(self.rng.randrange(size), self.rng.random() < 0.3) for _ in range(count)]
                writer = token_file.Writer("out", 2 if size == 300 else 4, has_targets=True)
                writer.begin_document()
                at = 0
                while at < count:
                    some = document[at : at + self.rng.randint(1, 3000)]
                    writer.append(np.array([t for t, _ in some]), np.array([c for _, c in some]))
                    at += len(some)
                writer.finish()
                self.assertEqual(Path("out").read_bytes(), plain_file([document], size), count)

    def test_reader(self):
        documents = [
            [(self.rng.randrange(300), self.rng.random() < 0.5) for _ in range(self.rng.randint(1, 300))]
            for _ in range(100)
        ]
        for has_targets in (True, False):
            whole = plain_file(documents, 300, has_targets=has_targets)
            Path("in").write_bytes(whole)
            reader = token_file.Reader("in")
            for i, document in enumerate(documents):
                ids, counts = reader.document(i)
                self.assertEqual(ids.tolist(), [token for token, _ in document])
                self.assertEqual(counts.tolist(), [counts or not has_targets for _, counts in document])
            if has_targets:
                self.assertEqual(
                    reader.counting, sum(counts for document in documents for _, counts in document)
                )
        for damaged in (
            whole[:-1],
            whole + b"\0",
            whole[:63],
            b"",
            b"PPTOKENX" + whole[8:],
            whole[:8] + b"\2" + whole[9:],
            whole[:12] + b"\3" + whole[13:],
            whole[:44] + b"\2" + whole[45:],
            whole[:16] + b"\xff" * 8 + whole[24:],
        ):
            Path("in").write_bytes(damaged)
            with self.assertRaises(tokens.Refusal):
                token_file.Reader("in")

    def test_a_full_disk_and_a_stop_leave_nothing(self):
        self.write("in.jsonl", [{"text": self.text()} for _ in range(100)])
        Path("out").write_bytes(b"before")
        for error, wanted in (
            (OSError(28, "No space left on device"), tokens.Failure),
            (KeyboardInterrupt(), KeyboardInterrupt),
            (SystemExit(1), SystemExit),
        ):
            for method in ("append", "_pad"):
                with mock.patch.object(token_file.Writer, method, side_effect=error):
                    with self.assertRaises(wanted):
                        self.make("in.jsonl")
            self.assertEqual(sorted(os.listdir()), ["in.jsonl", "out"])
        self.assertEqual(Path("out").read_bytes(), b"before")

    def test_no_room(self):
        """Whatever is written last: the tokens, or a section beside them."""
        self.write("in.jsonl", [{"text": "x" * 90} for _ in range(500)])
        self.make("in.jsonl")
        whole = Path("out").stat().st_size
        os.unlink("out")
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, (hard, hard))
        for room in (0, 1000, whole - 4001, whole - 1):
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
            with self.assertRaisesRegex(tokens.Failure, "^out: File too large$"):
                self.make("in.jsonl")
            self.assertEqual(os.listdir(), ["in.jsonl"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (whole, hard))
        self.make("in.jsonl")
        self.assertEqual(Path("out").stat().st_size, whole)

    def test_what_cannot_be_renamed(self):
        self.write("in.jsonl", [{"text": "abc"}])
        self.make("in.jsonl")
        wanted = Path("out").read_bytes()
        os.mkfifo("pipe")
        if not (child := os.fork()):
            with contextlib.suppress(BaseException):
                self.make("in.jsonl", output="pipe")
            os._exit(0)
        self.assertEqual(Path("pipe").read_bytes(), wanted)
        os.waitpid(child, 0)
        os.symlink("there", "link")
        Path("there").write_bytes(b"")
        self.make("in.jsonl", output="link")
        self.assertTrue(os.path.islink("link"))
        self.assertEqual(Path("there").read_bytes(), wanted)
        with self.assertRaisesRegex(tokens.Failure, "^/dev/full: No space left on device$"):
            self.make("in.jsonl", output="/dev/full")
        self.assertTrue(Path("/dev/full").is_char_device())
        os.mkdir("folder")
        with mock.patch.object(examples.Examples, "of", side_effect=AssertionError):  # comes before
            self.refused(
                "folder: Is a directory (a file that can be written)", "in.jsonl", output="folder"
            )


class DocumentsTest(Case):
    def documents(self, kind, count):
        def chat():
            roles = [["user", "assistant"][i % 2] for i in range(self.rng.randint(2, 5))]
            chat = {"messages": [{"role": role, "content": self.text()} for role in roles]}
            return chat | ({"tools": [{}] * self.rng.randint(1, 3)} if self.rng.random() < 0.5 else {})

        return [
            {
                "text": lambda: {"text": self.text()},
                "messages": chat,
                "prompt": lambda: {
                    "prompt": self.rng.choice([self.text(), "", "<s>a"]),
                    "completion": self.text(),
                },
            }[kind]()
            for _ in range(count)
        ]

    def test_all_bytes(self):
        """Every kind, with and without rows, of both widths, with and without a first token."""
        for kind, hows in (
            ("text", ["plain"]),
            ("prompt", ["plain"]),
            ("messages", ["plain", "marked", "ends", "open"]),
        ):
            for how in hows:
                for tokenizer in (Letters(), Letters(70000), Letters(prefix=[0])):
                    lines = self.documents(kind, 300)
                    self.write("in.jsonl", lines)
                    wanted = [plain_document(tokenizer, line, Turns(how)) for line in lines]
                    for row in (0, 2, 24, 300):
                        if row and not any(counts for each in wanted for _, counts in each[1:row]):
                            continue  # refused
                        printed = self.make("in.jsonl", tokenizer=tokenizer, how=how, pad=row)
                        expected = plain_file(wanted, tokenizer.size, row, row > 0 or kind != "text")
                        self.assertEqual(Path("out").read_bytes(), expected, (kind, how, row))
                        total, counting = (
                            struct.unpack_from("<Q", expected, 16)[0],
                            struct.unpack_from("<Q", expected, 48)[0],
                        )
                        share = f"{100 * counting / total:.1f}"
                        self.assertIn(
                            f"out: 300 documents, {total} tokens of {8 * expected[12]} bits, {counting} "
                            f"count as targets ({share} %)\n",
                            printed,
                        )
                        if row:
                            cut = sum(len(document) > row for document in wanted)
                            self.assertIn(f"\n300 rows of {row} tokens, {cut} cut\n", printed)

    def test_lengths(self):
        self.write("in.jsonl", [{"text": "x" * n} for n in (1, 2, 2, 14, 15, 200)])
        self.assertEqual(
            self.make("in.jsonl", pad=4, lengths="lengths").splitlines()[1:],
            [
                "         2 to        3 tokens         3  " + "#" * 40,
                "         4 to        7 tokens         0",
                "         8 to       15 tokens         1  " + "#" * 14,
                "        16 to       31 tokens         1  " + "#" * 14,
                "        32 to       63 tokens         0",
                "        64 to      127 tokens         0",
                "       128 to      255 tokens         1  " + "#" * 14,
                "6 rows of 4 tokens, 3 cut",
            ],
        )
        self.assertEqual(Path("lengths").read_text(), "2 1\n3 2\n15 1\n16 1\n201 1\n")
        self.refused("in.jsonl: is a source, too (another file to write)", "in.jsonl", lengths="in.jsonl")

    def test_where_rows_end(self):
        """One token too few, as many, one too many; the cut one has no end."""
        self.write("in.jsonl", [{"prompt": "d", "completion": "x" * n} for n in (1, 2, 3)])
        self.assertTrue(self.make("in.jsonl", pad=4).endswith("3 rows of 4 tokens, 1 cut\n"))
        reader = token_file.Reader("out")
        rows = [reader.document(i) for i in range(3)]
        d, x = Letters().id_of("d"), Letters().id_of("x")
        self.assertEqual(
            [ids.tolist() for ids, _ in rows], [[d, x, END, END], [d, x, x, END], [d, x, x, x]]
        )
        self.assertEqual(
            [counts.tolist() for _, counts in rows],
            [[False, True, True, False], [False, True, True, True], [False, True, True, True]],
        )

    def test_rows_whose_prompt_fills_them(self):
        self.write("in.jsonl", [{"prompt": "d" * n, "completion": "x"} for n in (1, 4, 5, 9)])
        self.assertTrue(
            self.make("in.jsonl", pad=5).endswith(
                "\n4 rows of 5 tokens, 3 cut\n2 documents without a token that counts\n"
            )
        )
        os.unlink("out")
        self.write("in.jsonl", [{"prompt": "d" * n, "completion": "x"} for n in (5, 9)])
        self.refused("--pad: no row of 5 tokens has one that counts (longer rows)", "in.jsonl", pad=5)

    def test_a_token_across_the_border_is_the_prompts(self):
        """ "a" ends what stands before the turn and "b" begins it: one token, which is not counted."""

        class Straddling(Turns):
            def render(self, messages, tools, add_generation_prompt):
                return super().render(messages, tools, add_generation_prompt).replace("<a>", "a")

        self.write(
            "in.jsonl",
            [{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "bc"}]}],
        )
        with mock.patch(__name__ + ".Turns", Straddling):
            self.make("in.jsonl")
        ids, counts = token_file.Reader("out").document(0)
        text = [Letters().decode([token]) for token in ids]
        self.assertEqual(text, ["<u>", "x", "<e>", "\n", "ab", "c", "<e>", "\n", "</s>"])
        self.assertEqual(counts.tolist(), [t in ("c",) or i == 6 for i, t in enumerate(text)])

    def test_end_token(self):
        self.write("in.jsonl", [{"text": "a"}])
        self.make("in.jsonl", eos="<e>")
        self.assertEqual(
            token_file.Reader("out").document(0)[0].tolist(),
            [Letters().id_of("a"), Letters().id_of("<e>")],
        )
        self.refused(
            "--eos: the tokenizer names no eos_token (--eos TOKEN, such as '<|endoftext|>')",
            "in.jsonl",
            tokenizer=Letters(names={}),
        )
        self.refused(
            "--eos: '<nix>' is no token of the tokenizer (one of its vocabulary)",
            "in.jsonl",
            eos="<nix>",
        )

    def test_sixteen_bits_where_they_suffice(self):
        self.write("in.jsonl", [{"text": "a"}])
        for size, width in ((1 << 16, 2), ((1 << 16) + 1, 4)):
            self.make("in.jsonl", tokenizer=Letters(size))
            self.assertEqual(token_file.Reader("out").token_bytes, width)
            self.assertEqual(
                token_file.Reader("out").document(0)[0].tolist(), [Letters(size).id_of("a"), END]
            )

    def test_memory_does_not_grow(self):
        """Eight times the documents, and a text eight times as long: 200 kB of tokens more."""
        with mock.patch.multiple(examples, BATCH_CHARACTERS=2000), mock.patch.multiple(
            sources, BLOCK=2000
        ), mock.patch.multiple(pieces, PIECE=2000, CLOSE=1000, SIDE=100), mock.patch.multiple(
            token_file, CHUNK=2000
        ):
            for kind in ("text", "prompt", "messages", "one text"):
                peaks = []
                for count in (500, 4000):
                    if kind == "one text":
                        Path("in.txt").write_text("some words\n" * 2 * count)
                    else:
                        self.write("in.txt", self.documents(kind, count))
                    tracemalloc.start()
                    self.make("in.txt")
                    peaks.append(tracemalloc.get_traced_memory()[1])
                    tracemalloc.stop()
                self.assertLess(peaks[1], peaks[0] + 60_000, (kind, peaks))


class LongTextTest(Case):
    def test_pieces_have_the_tokens_of_the_whole(self):
        for text, tokenizer, cuts in (
            ("ab ab\n\nba\nab " * 2000, Letters(), True),
            ("word " * 5000, Letters(), True),
            ("ab" * 9000, Letters(), False),
            ("some words\n" * 2000, Letters(begins_with_blank=True), False),
        ):
            with mock.patch.multiple(pieces, PIECE=3000, CLOSE=1500, SIDE=200), mock.patch.multiple(
                sources, BLOCK=1000
            ):
                Path("in.txt").write_text(text, newline="")
                self.make("in.txt", tokenizer=tokenizer)
                parts = list(
                    pieces.pieces(
                        [text[at : at + 700] for at in range(0, len(text), 700)], tokenizer.encode_all
                    )
                )
                self.make("in.txt", tokenizer=tokenizer, pad=100, output="padded")
            whole = plain_document(tokenizer, {"text": text})
            self.assertEqual(Path("out").read_bytes(), plain_file([whole], 300, has_targets=False))
            self.assertEqual(Path("padded").read_bytes(), plain_file([whole], 300, row=100))
            self.assertEqual("".join(parts), text)
            self.assertEqual(len(parts) > 1, cuts, text[:20])

    def test_the_first_token_stands_once(self):
        with mock.patch.multiple(pieces, PIECE=300, CLOSE=150, SIDE=20), mock.patch.multiple(
            sources, BLOCK=100
        ):
            Path("in.txt").write_text("word " * 500)
            self.make("in.txt", tokenizer=Letters(prefix=[0]))
        self.assertEqual(token_file.Reader("out").document(0)[0].tolist().count(0), 1)


class SourcesTest(Case):
    def documents(self, *names):
        return [
            (d.place, d.kind, d.value if isinstance(d.value, str) else "".join(d.value))
            for d in sources.Sources(sources.find(list(names)))
        ]

    def test_patterns_are_sorted_and_names_are_not(self):
        for name in ("b.txt", "a.txt", "c[1].txt"):
            Path(name).write_text(name)
        self.assertEqual(
            [place for place, _, _ in self.documents("c[1].txt", "[ab].txt")],
            ["c[1].txt", "a.txt", "b.txt"],
        )
        self.assertEqual([place for place, _, _ in self.documents("b.txt", "a.txt")], ["b.txt", "a.txt"])

    def test_content_tells_apart(self):
        long = "x" * (sources.BLOCK + 5)
        for name, content, wanted in (
            ("a", '{"text": "b"}\n', ["b"]),
            ("a", '\ufeff\n \n{"text": "b"}\r\n\n{"text": "c"}', ["b", "c"]),
            ("a", '{"text": "b\\u2028"}\n{"text": "c\u2028d"}\n', ["b\u2028", "c\u2028d"]),
            ("a", '{"text": "' + long + '"}\n{"text": "c"}\n', [long, "c"]),
            ("a", '{"text":\r"b"}\n{"text": "c"}\n', ["b", "c"]),
            ("a", "{ int x; }\n", ["{ int x; }\n"]),
            ("a", "\ufeff\n a\r\nb", ["\n a\r\nb"]),
            ("a", '"text"\n', ['"text"\n']),
            ("a", long + "\n" + long, [long + "\n" + long]),
            ("a", "é" * sources.BLOCK, ["é" * sources.BLOCK]),
            ("a", "[" * 100_000 + "\n", ["[" * 100_000 + "\n"]),
        ):
            Path(name).write_text(content, "utf-8", newline="")
            self.assertEqual([value for _, _, value in self.documents(name)], wanted, content[:40])

    def test_errors(self):
        line = '{"text": "a"}\n'
        keys = "(text; or prompt and completion; or messages)"
        what = "(an object, in one line)"
        learn = "(a document has something to learn)"
        deep = "more than 100 brackets stand in each other (fewer)"
        for name, content, error in (
            ("in", b"", "in: is empty (a document, or one a line)"),
            ("in", b" \n\n \n", "in: is empty (a document, or one a line)"),
            (
                "in.jsonl",
                b"a text\n",
                f"in.jsonl:1: is no JSON: Expecting value: line 1 column 1 (char 0) {what}",
            ),
            (
                "in.json",
                b"[\n" + line.encode(),
                f"in.json:1: is no JSON: Expecting value: line 2 column 1 (char 2) {what}",
            ),
            (
                "in",
                line + '{"text": "a',
                f"in:2: is no JSON: Unterminated string starting at: line 1 column 10 (char 9) {what}",
            ),
            ("in", line + "\n[1]", f"in:3: is [1] {what}"),
            ("in", line + '{"a": 1, "b": 2}', f"in:2: has the keys 'a, b' {keys}"),
            ("in", '{"prompt": "a"}', f"in:1: has the keys 'prompt' {keys}"),
            ("in", '{"text": "a", "messages": []}', f"in:1: has the keys 'text, messages' {keys}"),
            (
                "in",
                line + '{"prompt": "a", "completion": "b"}',
                "in:2: has prompt and completion, where in:1 has text (one kind in a token file)",
            ),
            ("in", line + '{"text": ""}', f"in:2: text is empty {learn}"),
            ("in", '{"prompt": "a", "completion": ""}', f"in:1: completion is empty {learn}"),
            ("in", '{"messages": []}', f"in:1: messages is empty {learn}"),
            ("in", '{"text": 7}', "in:1: text is 7 (a text)"),
            ("in", '{"prompt": null, "completion": "a"}', "in:1: prompt is None (a text)"),
            ("in", '{"messages": "a"}', "in:1: messages is 'a' (a list)"),
            ("in", '{"messages": ["a"]}', "in:1: message 0 is 'a' (an object with role and content)"),
            (
                "in",
                '{"messages": [{"role": "user"}]}',
                "in:1: message 0 is {'role': 'user'} (an object with role and content)",
            ),
            (
                "in",
                '{"messages": [{"role": "user", "content": "a"}], "tools": 3}',
                "in:1: tools is 3 (a list)",
            ),
            (
                "in",
                '{"messages": [{"role": "user", "content": "a"}]}',
                "in:1: the assistant says nothing (a message with the role assistant, by which a chat counts)",
            ),
            (
                "in",
                '{"messages": [{"role": "nobody", "content": "a"}]}',
                "in:1: the chat template refuses 1 messages: 'nobody\\nspeaks'",
            ),
            (
                "in",
                line + '{"text": "a\\ud800b"}',
                "in:2: has '\\ud800', half of a character (both, or none)",
            ),
            (
                "in",
                line.encode() + b'{"text": "\xff"}',
                "in:2: is no UTF-8 (invalid start byte in column 11)",
            ),
            ("in", b"a\xc3", "in: is no text: byte 1 is no UTF-8 (texts, or JSON lines)"),
            ("in", b"\xef\xbb\xbfa\xff", "in: is no text: byte 4 is no UTF-8 (texts, or JSON lines)"),
            *(
                ("in", '{"text": ' + "[" * n + "]" * n + "}", f"in:1: {deep}")
                for n in (100, 300, 900, 950, 980, 990, 100_000)
            ),
            (
                "in",
                b"a" * (3 * sources.BLOCK) + b"\xffa",
                f"in: is no text: byte {3 * sources.BLOCK} is no UTF-8 (texts, or JSON lines)",
            ),
            ("in", b"a\0", "in: is no text: it has a byte 0 (texts, or JSON lines)"),
        ):
            Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
            self.refused(error, name)
            os.unlink(name)
        self.refused("nix*: no such file (a file, or a pattern such as 'texts/*.txt')", "nix*")
        Path("in").write_text(line)
        error = "/proc/self/mem: Input/output error (a file that can be read)"
        self.refused(error, "in", "/proc/self/mem")
        os.mkdir("folder")
        self.refused("folder: is a folder (a pattern names files, such as 'folder/*.txt')", "folder")
        Path("out").write_text(line)
        self.refused("out: is a source, too (another file to write)", "out")
        Path("in").write_text(line)
        self.refused(
            "nix/out: No such file or directory (a file that can be written)", "in", output="nix/out"
        )

    def test_keys_that_are_not_used_are_named(self):
        self.write("in", [{"text": "a", "id": 1}, {"text": "b", "id": 2, "source": "c"}])
        self.make("in")
        self.assertEqual(
            self.notes.getvalue(), "tools/tokens: note: keys that are not used: 'id, source'\n"
        )


class ChatsTest(Case):
    MESSAGES = [
        {"role": role, "content": text}
        for role, text in (("user", "x"), ("assistant", "yy"), ("user", "z"), ("assistant", "ww"))
    ]

    def test_a_template_that_rewrites(self):
        """Its last turn alone is fine."""
        chats = Chats(Turns("forgetful").render, SPECIALS)
        text, spans = chats.text({"messages": self.MESSAGES[:2]}, "in:1")
        self.assertEqual([text[a:b] for a, b in spans], ["yy<e>"])
        with self.assertRaises(tokens.Refusal) as caught:
            chats.text({"messages": self.MESSAGES}, "in:1")
        self.assertEqual(
            str(caught.exception),
            "in:1: its first 2 messages are not rendered as in the whole chat, from "
            "'y<e>\\n' on (a template that marks what counts with {% generation %}, or a chat that ends "
            "with that turn)",
        )

    def test_marks_are_believed(self):
        """Also where the template rewrites; and none is left in the text."""

        def render(messages, tools, prompt):
            return "[" + "".join("\ufdd0" + m["content"][:1] + "\ufdd1," for m in messages) + "]"

        text, spans = Chats(render, SPECIALS).text({"messages": self.MESSAGES}, "in:1")
        self.assertEqual((text, spans), ("[x,y,z,w,]", [(1, 2), (3, 4), (5, 6), (7, 8)]))

    def test_marks_of_a_message(self):
        """It cannot choose what counts."""
        for mark in ("\ufdd0", "\ufdd1"):
            for how in ("plain", "marked"):
                for line in (
                    {"messages": [{"role": "user", "content": f"a{mark}b"}, *self.MESSAGES[1:]]},
                    {"messages": self.MESSAGES, "tools": [{"a": [{"b": mark}]}]},
                ):
                    with self.assertRaisesRegex(tokens.Refusal, "^in:1: has one of .* which mark what"):
                        Chats(Turns(how).render, SPECIALS).text(line, "in:1")

    def test_a_generation_prompt_that_is_not_asked_for(self):
        """As LLaMA 3 had it once. A template that has none at all is fine."""
        roles = ("user", "assistant", "assistant", "user", "assistant")
        chat = [{"role": role, "content": "xx"} for role in roles]
        for how in ("plain", "open", "ends"):
            always = Chats(lambda m, t, _, how=how: Turns(how).render(m, t, True), SPECIALS)
            never = Chats(lambda m, t, _, how=how: Turns(how).render(m, t, False), SPECIALS)
            for length in range(2, 6):
                line = {"messages": chat[:length]}
                with self.assertRaisesRegex(tokens.Refusal, "^in:1: the chat template ends in a gen"):
                    always.text(line, "in:1")
                text, spans = never.text(line, "in:1")
                end = {"plain": "<e>", "open": "\n", "ends": "</s>"}[how]
                assistants = roles[:length].count("assistant")
                self.assertEqual([text[a:b] for a, b in spans], ["<a>xx" + end] * assistants)

    def test_nothing_said(self):
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]
        for how in ("plain", "marked"):
            with self.assertRaisesRegex(tokens.Refusal, "^in:1: the assistant says nothing"):
                Chats(lambda *call: Turns(how).render(*call).replace("<e>", ""), []).text(
                    {"messages": messages[:1]}, "in:1"
                )
        text, spans = Chats(Turns().render, SPECIALS).text({"messages": messages}, "in:1")
        self.assertEqual([text[a:b] for a, b in spans], ["<e>"])


class DecodingTest(Case):
    def test_documents(self):
        self.write(
            "in", [{"prompt": "ab", "completion": "c\nd"}, {"prompt": "", "completion": "long" * 9}]
        )
        self.make("in")
        self.assertEqual(
            list(decoding.documents("out", Letters())),
            [
                "document 0: 5 tokens, 4 count\nabc\nd</s>",
                "document 1: 37 tokens, 37 count\n" + "long" * 9 + "</s>",
            ],
        )
        self.make("in", pad=12)
        self.assertEqual(
            list(decoding.documents("out", Letters())),
            [
                "document 0: 12 tokens, 4 count\nabc\nd</s>",
                "document 1: 12 tokens, 11 count\nlonglonglong",
            ],
        )

    def test_no_documents(self):
        """The format has such files."""
        Path("in").write_bytes(plain_file([], 300))
        with self.assertRaisesRegex(tokens.Refusal, "^in: has no documents"):
            list(decoding.documents("in", Letters()))

    def test_numbers(self):
        a, b = Letters().id_of("a"), Letters().id_of("x")
        for printed, wanted in (
            (f"{a} {b}\n", ["ax"]),
            (f"[{a}, {b}]\n\n{b},{a}\n", ["ax", "xa"]),
            (f"step 1/2  loss 5\nsample: {a} {a} |{b} 1\n", ["aax</s>"]),
        ):
            self.assertEqual(list(decoding.numbers(io.StringIO(printed), Letters())), wanted)
        for printed, error in (
            ("1 x 2\n", "'x' (numbers of tokens, separated by blanks or commas)"),
            ("300\n", "token 300 (less than the tokenizer's 300)"),
            ("-1\n", "'-1' (numbers of tokens, separated by blanks or commas)"),
        ):
            with self.assertRaises(tokens.Refusal) as caught:
                list(decoding.numbers(io.StringIO(printed), Letters()))
            self.assertEqual(str(caught.exception), "standard input:1: " + error)


if __name__ == "__main__":
    unittest.main()
