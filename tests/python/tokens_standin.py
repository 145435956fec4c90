"""A tokenizer and a chat template that are plain enough to compute by hand what tools/tokens has to
make of a document, and the file that it has to write, both without the package under test."""

import re
import struct

NAMED = ("<s>", "</s>", "<u>", "<a>", "<e>", "ab", "\n\n")  # of several characters, the first tokens
SPECIALS = list(NAMED[:5])
END = 1
_TOKENS = re.compile("|".join(map(re.escape, NAMED)) + "|.", re.S)


class Letters:
    """Every character is a token, but for those in NAMED. `size` 70000 makes all but END large."""

    def __init__(self, size=300, prefix=(), names=None, begins_with_blank=False):
        self.size, self.prefix = size, list(prefix)
        self.names = {"eos_token": "</s>"} if names is None else names
        self.specials = SPECIALS
        self._blank = " " if begins_with_blank else ""

    def id_of(self, token):
        number = (
            NAMED.index(token)
            if token in NAMED
            else len(NAMED) + ord(token) if len(token) == 1 else None
        )
        return number if number is None or number <= END else number + self.size - 300

    def encode_with_starts(self, text):
        import numpy as np

        found = list(_TOKENS.finditer(self._blank + text))
        starts = np.array([max(0, each.start() - len(self._blank)) for each in found], np.int64)
        return [self.id_of(each[0]) for each in found], starts

    def encode_all(self, texts):
        return [self.encode_with_starts(text)[0] for text in texts]

    def decode(self, ids):
        numbers = [i if i <= END else i - self.size + 300 for i in ids]
        return "".join(NAMED[i] if i < len(NAMED) else chr(i - len(NAMED)) for i in numbers)


class Turns:
    """<u>what a user says<e>, and the same with <a>; a line break after each. `how`: "plain",
    "marked", "forgetful" (shortens what it has said before), "ends" (with </s> alone) or "open" (a
    turn ends with a line break alone)."""

    def __init__(self, how="plain"):
        self.how = how

    def turns(self, messages):
        """(what stands before it, what is said with the end of its turn, what stands after) of each."""
        for i, message in enumerate(messages):
            said, is_assistant = message["content"], message["role"] == "assistant"
            if self.how == "forgetful" and is_assistant and i < len(messages) - 1:
                said = said[:1]
            end, after = {"ends": ("</s>" if is_assistant else "", ""), "open": ("\n", "")}.get(
                self.how, ("<e>", "\n")
            )
            yield ("<a>" if is_assistant else "<u>"), said + end, after

    def render(self, messages, tools, add_generation_prompt):
        if any(message["role"] == "nobody" for message in messages):
            raise ValueError("nobody\nspeaks")
        text = "tools " * len(tools or [])
        for message, (before, said, after) in zip(messages, self.turns(messages)):
            if self.how == "marked" and message["role"] == "assistant":
                said = f"\ufdd0{said}\ufdd1"
            text += before + said + after
        return text + ("<a>" if add_generation_prompt else "")


def plain_document(tokenizer, line, turns=None):
    """[(token, counts)] of a document, as a JSON line has it, character by character."""

    def tokens(text, counts):
        return [(token, counts) for token in tokenizer.encode_all([text])[0]]

    if "text" in line:
        document = tokens(line["text"], True) + [(END, True)]
    elif "prompt" in line:
        document = tokens(line["prompt"], False)
        if [token for token, _ in document][: len(tokenizer.prefix)] != tokenizer.prefix:
            document = [(token, False) for token in tokenizer.prefix] + document
        return document + tokens(line["completion"], True) + [(END, True)]
    else:
        document = tokens("tools " * len(line.get("tools", [])), False)
        for message, (before, said, after) in zip(line["messages"], turns.turns(line["messages"])):
            document += (
                tokens(before, False)
                + tokens(said, message["role"] == "assistant")
                + tokens(after, False)
            )
        if document[-1][0] != END:
            document += [(END, turns.how == "open" and message["role"] == "assistant")]
        return document
    if [token for token, _ in document][: len(tokenizer.prefix)] != tokenizer.prefix:
        document = [(token, True) for token in tokenizer.prefix] + document
    return document


def plain_file(documents, size, row=0, has_targets=True):
    """The bytes of a token file."""
    starts, all_tokens = [], []
    for document in documents:
        starts.append(len(all_tokens))
        if row:
            document = document[:row] + [(END, False)] * (row - len(document))
            document[0] = (document[0][0], False)
        all_tokens += document
    width = 2 if size <= 65536 else 4
    tokens = b"".join(struct.pack("<H" if width == 2 else "<I", token) for token, _ in all_tokens)
    while len(tokens) % 8:
        tokens += b"\0"
    bits, counts, counting = [0] * ((len(all_tokens) + 63) // 64), [], 0
    for i, (_, does_count) in enumerate(all_tokens):
        if i % 4096 == 0:
            counts.append(counting)
        if does_count:
            bits[i // 64] |= 1 << i % 64
            counting += 1
    if not has_targets:
        bits, counts, counting = [], [], len(all_tokens)
    largest = max((token for token, _ in all_tokens), default=0)
    header = (
        b"PPTOKENS"
        + struct.pack("<II", 1, width)
        + struct.pack("<QQQ", len(all_tokens), len(starts), row)
    )
    header += struct.pack("<IIQQ", largest, int(has_targets), counting, 0)
    return header + tokens + b"".join(struct.pack("<Q", word) for word in starts + bits + counts)
