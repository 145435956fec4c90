"""The command tools/tokens: its options, and how it ends. With modules that have no more than the names
of `tokenizers` and jinja2, so that Debian's Python with numpy runs it."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

import tokens
from tokens import __main__ as command
from tokens_standin import Letters
from tokens_test import Case


class OptionsTest(Case):
    def test_errors(self):
        for arguments, error in (
            ("in -o out", "--tokenizer: is missing (tools/tokens --help)"),
            ("in --tokenizer f", "--output: is missing (-o DATA, the file to write)"),
            ("--tokenizer f -o out", "SOURCE: is missing (tools/tokens --help)"),
            (
                "in --tokenizer f -o out --pad 1",
                "--pad: '1' (a whole number from 2 to 1048576)",
            ),
            (
                "in --tokenizer f -o out --pad 1048577",
                "--pad: '1048577' (a whole number from 2 to 1048576)",
            ),
            (
                "in --tokenizer f -o out --pad " + "9" * 5000,
                f"--pad: {tokens.shown('9' * 5000)} (a whole number from 2 to 1048576)",
            ),
            (
                "in --tokenizer f -o out --documents 3",
                "--documents: goes with --decode (which prints documents)",
            ),
            (
                "in --tokenizer f --decode -o out",
                "--decode: takes one SOURCE, --tokenizer and --documents alone (no -o, --pad, --lengths, "
                "--eos)",
            ),
            ("in --tokenizer f -o out --packed", "--packed: is no option (tools/tokens --help)"),
        ):
            with self.assertRaises(tokens.Refusal) as caught:
                command.parse(arguments.split())
            self.assertEqual(str(caught.exception), error)

    def test_empty_texts(self):
        for arguments in (
            ["--eos", ""],
            ["--output", ""],
            ["--tokenizer", ""],
            ["--decode", "--eos", ""],
        ):
            with self.assertRaises(tokens.Refusal) as caught:
                command.parse(["in", "--tokenizer", "f", *arguments])
            self.assertEqual(str(caught.exception), f"{arguments[-2]}: '' (a text that is not empty)")
        with self.assertRaisesRegex(tokens.Refusal, "^SOURCE: '' "):
            command.parse(["", "--tokenizer", "f", "-o", "out"])

    def test_the_longest_row(self):
        self.write("in", [{"text": "a"}])
        self.make("in", pad=command.LONGEST_ROW)
        self.assertEqual(Path("out").read_bytes()[16:24], command.LONGEST_ROW.to_bytes(8, "little"))


class CommandTest(Case):
    def run_main(self, *arguments, tokenizer=None, data=""):
        """Its status, and what it prints."""
        out, err = io.StringIO(), io.StringIO()
        module = mock.Mock(Tokenizer=lambda folder: tokenizer or Letters())
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.dict(sys.modules, {"tokens.tokenizer": module}))
            stack.enter_context(mock.patch.dict(sys.modules, {"tokens.template": mock.Mock()}))
            stack.enter_context(mock.patch.object(sys, "argv", ["tokens", *arguments]))
            stack.enter_context(mock.patch.object(sys, "stdin", io.StringIO(data)))
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(err))
            status = command.main()
        return status, out.getvalue(), err.getvalue()

    def test_the_first_documents(self):
        """Of a file, and of numbers."""
        self.write("in", [{"text": text} for text in "abc"])
        self.make("in")
        a, b = Letters().id_of("a"), Letters().id_of("b")
        samples = f"sample: {a}|\nsample: {b}|\n"
        for source, one in (("out", "document 0: 2 tokens, 2 count\na</s>\n"), ("-", "a\n")):
            arguments = ["--decode", source, "--tokenizer", "f", "--documents"]
            self.assertEqual(self.run_main(*arguments, "1", data=samples), (0, one, ""))
            self.assertEqual(self.run_main(*arguments, "2", data=samples)[1].count("b"), 1)

    def test_names_stand_in_one_line(self):
        wanted = "a\\nb\\x1b\\udcff\u00e9: no such file (a file, or a pattern such as 'texts/*.txt')"
        name = "a\nb\x1b\udcff\u00e9"
        arguments = ["--tokenizer", "f", "-o", name]
        self.assertEqual(
            self.run_main(name, *arguments), (2, "", f"tools/tokens: error: {wanted}\n")
        )
        self.write("in", [{"text": "a"}])
        self.assertTrue(self.run_main("in", *arguments)[1].startswith("a\\nb\\x1b\\udcff\u00e9: 1 doc"))

    def test_signals_leave_nothing(self):
        """One that is ignored (nohup) goes on being so."""
        os.mkfifo("in")
        program = (
            "import sys, signal; from unittest import mock; from tokens import __main__ as command\n"
            "from tokens_standin import Letters\n"
            "sys.modules['tokens.tokenizer'] = mock.Mock(Tokenizer=lambda folder: Letters())\n"
            "sys.modules['tokens.template'] = mock.Mock()\n"
            "sys.exit(command.main())"
        )
        for number, ignored, status in (
            (signal.SIGHUP, False, 1),
            (signal.SIGTERM, False, 1),
            (signal.SIGHUP, True, 0),
        ):
            child = subprocess.Popen(
                [sys.executable, "-c", program, "in", "--tokenizer", "f", "-o", "out"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=(lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) if ignored else None,
            )
            with open("in", "w") as pipe:
                pipe.write('{"text": "a"}\n' * 20_000)  # more than a batch
                pipe.flush()
                while not any("unfinished" in name for name in os.listdir()):
                    self.assertIsNone(child.poll(), "it ended by itself")
                child.send_signal(number)
                if not ignored:
                    child.wait(60)
            self.assertEqual((child.communicate(timeout=60)[1], child.returncode), ("", status), number)
            self.assertEqual(os.path.exists("out"), ignored)
            self.assertEqual([name for name in os.listdir() if "unfinished" in name], [])


    def test_a_second_signal_does_not_stop_the_cleaning(self):
        """As systemd sends SIGTERM and SIGHUP."""
        for number in command.STOPS:
            self.addCleanup(signal.signal, number, signal.signal(number, command.stop))
        with self.assertRaises(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)


class FoldersTest(Case):
    def test_the_current_folder_is_not_run(self):
        """The user's own PYTHONPATH is, as where `tokenizers` is found by it."""
        os.mkdir("modules")
        for name in ("jinja2", "tokenizers"):
            Path("modules", f"{name}.py").write_text("")
        for name in ("tokens", "json", "runpy", "numpy", "argparse", "struct"):
            Path(f"{name}.py").write_text("open('has_run', 'w')")
        run = subprocess.run(
            [os.environ["TOKENS"], "in", "--tokenizer", "nix", "-o", "out"],
            capture_output=True,
            text=True,
            env={
                "PATH": os.environ["PATH"],
                "PYTHON": sys.executable,
                "PYTHONPATH": f"{self.folder}/modules",
            },
        )
        self.assertFalse(os.path.exists("has_run"))
        self.assertTrue(
            run.stderr.startswith("tools/tokens: error: nix/tokenizer.json: No such file"), run.stderr
        )


if __name__ == "__main__":
    unittest.main()
