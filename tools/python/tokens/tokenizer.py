"""The tokenizer of a Hugging Face folder, by the library `tokenizers`."""

import json
from pathlib import Path

import numpy as np

from . import Refusal, shown


def read_json(path: Path) -> dict:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise Refusal(
            f"{path}: {error.strerror} (a folder that transformers has saved has it)"
        ) from error
    except (RecursionError, ValueError) as error:
        raise Refusal(f"{path}: is no JSON: {error} (an object)") from error
    if not isinstance(value, dict):
        raise Refusal(f"{path}: is {shown(value)} (an object)")
    return value


def named_tokens(folder: Path) -> dict[str, str]:
    """bos_token, eos_token and so on, as tokenizer_config.json names them, or else
    special_tokens_map.json."""
    names: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        if not (folder / file).exists():
            continue
        for key, value in read_json(folder / file).items():
            value = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(value, str):
                names[key] = value
    return names


class Tokenizer:
    """What examples.py and chats.py need of a tokenizer, which tests have a stand-in for."""

    def __init__(self, folder: str):
        import tokenizers

        path = Path(folder) / "tokenizer.json"
        data = read_json(path)
        try:
            whole = tokenizers.Tokenizer.from_str(json.dumps(data))
            # Special tokens are added here, once; and offsets are those of all that a token stands
            # for, where some post-processors move a blank to the end of it.
            for key in ("post_processor", "truncation", "padding"):
                data[key] = None
            self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(data))
        except Exception as error:  # the library raises no other class
            raise Refusal(f"{path}: {shown(str(error))} (a file of the library tokenizers)") from error
        # Without offsets, where the version has it.
        self._encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        self.size = max(ids, default=-1) + 1  # every token is less
        self.names = named_tokens(Path(folder))
        added = self._tokenizer.get_added_tokens_decoder().values()
        self.specials = [token.content for token in added if token.special]
        self.prefix = self._find_prefix(whole)  # what the post-processor puts before a text: BOS

    def _find_prefix(self, whole) -> list[int]:
        for text in ("a", "0", " "):
            plain = self._tokenizer.encode(text, add_special_tokens=False).ids
            full = whole.encode(text).ids
            for at in range(len(full) - len(plain) + 1):
                if plain and full[at : at + len(plain)] == plain:
                    return full[:at]
        return []

    def id_of(self, token: str) -> int | None:
        try:
            return self._tokenizer.token_to_id(token)
        except UnicodeEncodeError:  # it has half of a character
            return None

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        """Tokens of each text, without special ones but for those that it has in it."""
        return [each.ids for each in self._encode(texts, add_special_tokens=False)]

    def encode_with_starts(self, text: str) -> tuple[list[int], np.ndarray]:
        """Also where in the text each token begins, in characters; with its first character that is
        not blank, if it has one, as a word that comes after a blank belongs to what the word does."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        starts = np.array([start for start, _ in encoding.offsets], np.int64)
        for i, (start, end) in enumerate(encoding.offsets):
            word = text[start:end].lstrip()
            starts[i] = end - len(word) if word else start
        return encoding.ids, starts

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)
