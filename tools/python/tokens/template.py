"""A tokenizer's chat template, rendered by jinja2 as transformers does."""

import datetime
import json
from pathlib import Path

from . import Refusal, shown
from .chats import MARKS
from .tokenizer import named_tokens, read_json


def find(folder: Path) -> tuple[str, str] | None:
    """The file that has it, and its source."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return str(path), path.read_text("utf-8")
        except OSError as error:
            raise Refusal(f"{path}: {error.strerror} (a file that can be read)") from error
        except UnicodeDecodeError as error:
            raise Refusal(f"{path}: byte {error.start} is no UTF-8 (a chat template)") from error
    path = folder / "tokenizer_config.json"
    source = read_json(path).get("chat_template") if path.exists() else None
    if isinstance(source, list):  # of several templates
        named = [each for each in source if isinstance(each, dict) and each.get("name") == "default"]
        source = named[0].get("template") if named else None
    return (str(path), source) if isinstance(source, str) else None


class Template:
    """Renders messages. What stands between {% generation %} and {% endgeneration %} is put between
    MARKS, which no text has."""

    def __init__(self, folder: str):
        found = find(Path(folder))
        if not found:
            raise Refusal(
                f"{folder}: has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json)"
            )
        where, source = found
        self._names = named_tokens(Path(folder))
        self._now = datetime.datetime.now()
        try:
            self._template = _environment(self._now).from_string(source)
        except Exception as error:  # also what Python finds: brackets too deep, a half of a character
            raise Refusal(f"{where}: the chat template: {shown(str(error))}") from error

    def render(self, messages: list, tools: list | None, add_generation_prompt: bool) -> str:
        return self._template.render(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._names,
        )


def _environment(now: datetime.datetime):
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        def _marked(self, caller):
            return MARKS[0] + caller() + MARKS[1]

    def refuse(message):
        raise TemplateError(message)

    def to_json(value, **options):  # without HTML's escapes
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = now.strftime
    return environment
