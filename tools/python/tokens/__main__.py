"""The command tools/tokens."""

import argparse
import os
import signal
import sys
from itertools import chain, islice
from pathlib import Path

from . import Failure, Refusal, decoding, one_line, shown
from .chats import Chats
from .examples import Examples, row
from .sources import Sources, find
from .summary import Lengths, summary
from .token_file import Writer

ABOUT = """\
Makes a file of tokens, for piperun --data, from texts, prompts and chats.

  tools/tokens 'texts/*.txt' --tokenizer FOLDER -o DATA
  tools/tokens chats.jsonl --tokenizer FOLDER --pad 512 -o DATA
  tools/tokens --decode DATA --tokenizer FOLDER --documents 3
  piperun ... --sample 50 | tools/tokens --decode - --tokenizer FOLDER
"""
SOURCES = """\
SOURCE is a file, a pattern of a shell (its files are sorted), or - for standard input, which is JSON
lines. Content tells apart: a text, which is one document; or JSON with a document a line:
  {"text": ...}                          every token counts as a target
  {"prompt": ..., "completion": ...}     the completion counts, with the end token. The two are
                                         tokenised separately: a blank between them stands in one
  {"messages": [{"role": ..., "content": ...}, ...], "tools": ...}
                                         through the tokenizer's chat template: what the assistant
                                         says counts, with the end of its turn
All documents of a file are of one kind. Each begins with what the tokenizer's post-processor puts
first (BOS), if it does (a chat: what the template puts there), and ends with the end token (a chat
that ends with it has no second one, and another one counts only where it ends the assistant's turn).
Special tokens that stand in a text are those tokens.
"""


LONGEST_ROW, MOST_DOCUMENTS = 1 << 20, (1 << 31) - 1
STOPS = (signal.SIGHUP, signal.SIGTERM)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        message = message.removeprefix("argument ").replace("-o/--output", "--output")
        for what, said in (
            ("the following arguments are required: ", "is missing (tools/tokens --help)"),
            ("unrecognized arguments: ", "is no option (tools/tokens --help)"),
        ):
            if message.startswith(what):
                message = f"{message.removeprefix(what)}: {said}"
        raise Refusal(message)


def whole_number(least: int, most: int):
    def read(text: str) -> int:
        if not text.isdecimal() or len(text) > 20 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{shown(text)} (a whole number from {least} to {most})")
        return int(text)

    return read


def a_text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("'' (a text that is not empty)")
    return text


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        "tools/tokens",
        description=ABOUT,
        epilog=SOURCES,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="+",
        type=a_text,
        help="as below; with --decode, the file of tokens",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FOLDER",
        type=a_text,
        required=True,
        help="Hugging Face's: tokenizer.json, tokenizer_config.json ...",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DATA",
        type=a_text,
        help="the file of tokens; - is standard output",
    )
    parser.add_argument(
        "--pad",
        metavar="T",
        type=whole_number(2, LONGEST_ROW),
        default=0,
        help="a row of T tokens for each document, for piperun with sequences of T: filled with "
        "end tokens, which do not count, or cut",
    )
    parser.add_argument(
        "--lengths",
        metavar="FILE",
        type=a_text,
        help="write how many documents have how many tokens, a line `TOKENS DOCUMENTS` for each "
        "length, for pipec --lengths",
    )
    parser.add_argument(
        "--eos",
        metavar="TOKEN",
        type=a_text,
        help="the end token (default: the tokenizer's eos_token)",
    )
    parser.add_argument(
        "--decode",
        action="store_true",
        help="print the documents of a file of tokens; of -, the text of numbers on standard input",
    )
    parser.add_argument(
        "--documents",
        metavar="N",
        type=whole_number(1, MOST_DOCUMENTS),
        help="with --decode: the first N alone",
    )
    options = parser.parse_args(arguments)
    others = options.output or options.pad or options.lengths or options.eos
    if options.decode and (others or len(options.sources) > 1):
        raise Refusal(
            "--decode: takes one SOURCE, --tokenizer and --documents alone (no -o, --pad, --lengths, "
            "--eos)"
        )
    if not options.decode and not options.output:
        raise Refusal("--output: is missing (-o DATA, the file to write)")
    if options.documents and not options.decode:
        raise Refusal("--documents: goes with --decode (which prints documents)")
    return options


def end_token(tokenizer, wanted: str | None) -> int:
    name = wanted or tokenizer.names.get("eos_token")
    if name is None:
        raise Refusal("--eos: the tokenizer names no eos_token (--eos TOKEN, such as '<|endoftext|>')")
    token = tokenizer.id_of(name)
    if token is None:
        raise Refusal(f"--eos: {shown(name)} is no token of the tokenizer (one of its vocabulary)")
    return token


def make(options: argparse.Namespace, tokenizer, template, out) -> None:
    """`template` makes what renders chats, where documents are chats."""
    files = find(options.sources)
    for written in filter(None, (options.output, options.lengths)):
        for name in files:
            if name != "-" and os.path.exists(written) and os.path.samefile(name, written):
                raise Refusal(f"{written}: is a source, too (another file to write)")
    end = end_token(tokenizer, options.eos)
    sources = Sources(files)
    documents = iter(sources)
    first = next(documents, None)
    if first is None:
        raise Refusal(f"{files[0]}: has no documents (at least one)")
    chats = Chats(template().render, tokenizer.specials) if first.kind == "messages" else None
    writer = Writer(
        options.output,
        2 if tokenizer.size <= 1 << 16 else 4,
        options.pad,
        has_targets=first.kind != "text" or options.pad > 0,
    )
    try:
        lengths = fill(writer, Examples(tokenizer, end, chats), chain([first], documents), end)
        if lengths.idle == writer.documents:
            raise Refusal(f"--pad: no row of {options.pad} tokens has one that counts (longer rows)")
        writer.finish()
    except OSError as error:
        writer.abandon()
        if isinstance(error, BrokenPipeError):
            raise
        raise Failure(f"{options.output}: {error.strerror}") from error
    except BaseException:
        writer.abandon()
        raise
    if sources.unused:
        print(
            f"tools/tokens: note: keys that are not used: {shown(', '.join(sources.unused))}",
            file=sys.stderr,
        )
    if options.lengths:
        try:
            Path(options.lengths).write_text(lengths.rows())
        except OSError as error:
            raise Failure(f"{options.lengths}: {error.strerror}") from error
    print(summary(options.output, writer, lengths), file=out)


def fill(writer: Writer, examples: Examples, documents, end: int) -> Lengths:
    """Writes all documents; how long they are."""
    lengths = Lengths()
    for parts in examples.of(documents):
        writer.begin_document()
        before, counting = writer.tokens, 0
        if writer.row:
            part, tokens = row(parts, writer.row, end)
            parts = [part]
        for ids, counts in parts:
            writer.append(ids, counts)
            counting += int(counts.sum())
        lengths.add(tokens if writer.row else writer.tokens - before)
        lengths.cut += writer.row > 0 and tokens > writer.row
        lengths.idle += counting == 0
    return lengths


def decode(options: argparse.Namespace, tokenizer) -> None:
    source = options.sources[0]
    if source == "-":
        texts = decoding.numbers(sys.stdin, tokenizer)
    else:
        texts = decoding.documents(source, tokenizer)
    for text in islice(texts, options.documents):
        print(text)


def run(arguments: list[str]) -> None:
    options = parse(arguments)
    from .template import Template
    from .tokenizer import Tokenizer

    tokenizer = Tokenizer(options.tokenizer)
    if options.decode:
        decode(options, tokenizer)
    else:
        out = sys.stderr if options.output == "-" else sys.stdout
        make(options, tokenizer, lambda: Template(options.tokenizer), out)
    sys.stdout.flush()


def stop(*_) -> None:
    """What is half written goes, too, without another stop in between."""
    for number in STOPS:
        signal.signal(number, lambda *_: None)
    sys.exit(1)


def main() -> int:
    for number in STOPS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, stop)
    try:
        run(sys.argv[1:])
        return 0
    except Refusal as refusal:
        status, line = 2, str(refusal)
    except BrokenPipeError:  # such as of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Failure as failure:
        status, line = 1, str(failure)
    except OSError as error:
        status, line = 2, f"{error.filename or 'standard input or output'}: {error.strerror}"
    except KeyboardInterrupt:
        status, line = 130, "stopped"
    print(f"tools/tokens: error: {one_line(line)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
