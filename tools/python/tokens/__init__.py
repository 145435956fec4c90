"""Token files for piperun, from texts, prompts and chats: tools/tokens.

__main__.py    the command line
sources.py     files of texts and of JSON lines: documents
tokenizer.py   a Hugging Face folder's tokenizer (`tokenizers`)
template.py    its chat template (jinja2)
chats.py       which part of a rendered chat the assistant says
examples.py    documents: tokens, and which of them count as targets
pieces.py      a text too long for one call, cut where its tokens stay the same
token_file.py  the format, written and read
summary.py     what was made; decoding.py the way back
"""


class Refusal(Exception):
    """What a user can mend, in one line: `<file or option>: <what is wrong> (<what would be right>)`."""


class Failure(Exception):
    """What went wrong with good input: a full disk."""


def shown(value: object) -> str:
    """A text from outside, in one line of at most 200 characters."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."


def one_line(text: str) -> str:
    """Names of files may have line breaks, and bytes that are no UTF-8: these are escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
