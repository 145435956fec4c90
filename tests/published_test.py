#!/usr/bin/env python3
"""Tables that lay published runs beside predictions, computed anew.

    published_test.py PIPEC DOCUMENT [TABLE]...   by default all, which takes a minute and a half,
                                                  Mario's most of it; "measured" are those that
                                                  the line over all tables counts. Fails, and
                                                  prints it, if something is not as in DOCUMENT
    published_test.py PIPEC - [TABLE]...          prints them

Facts are in reference/published/, each source's tables in published/. Needs python3.
"""

import sys
import tempfile

sys.dont_write_bytecode = True  # beside the sources
from published.galvatron import galvatron_memory, galvatron_times
from published.judge import Judge, over_all
from published.megatron import megatron_7b, megatron_small
from published.papers import fold, mario, megatron
from published.pipec import Pipec
from published.schedules import mlperf, primus, torchtitan
from published.simumax import simumax

PAPERS = (megatron, mario, fold)
MEASURED = (megatron_7b, megatron_small, simumax, primus, mlperf, torchtitan, galvatron_times,
            galvatron_memory)
TABLES = {table.__name__: [table] for table in PAPERS + MEASURED} | {"measured": MEASURED}


def computed(table, pipec, judges):
    """The rows as Markdown, and the lines below."""
    rows, lines = "", []
    for item in table(pipec):
        if isinstance(item, Judge):
            judges.append(item)
            lines += item.lines()
        elif isinstance(item, str):
            lines.append(item)
        else:
            rows += f"| {' | '.join(map(str, item))} |\n".replace("|  |", "| |")
    return rows, lines


def words(text):
    return " ".join(text.split())


def main():
    path, document, *names = sys.argv[1:]
    printed = ""
    if document != "-":
        with open(document) as file:
            printed = file.read()
    wrong = 0

    def compare(text, there):
        nonlocal wrong
        if not there:
            wrong += document != "-"
            print(text)

    judges = []
    with tempfile.TemporaryDirectory() as folder:
        pipec = Pipec(path, folder)
        for table in [table for name in names for table in TABLES[name]] or PAPERS + MEASURED:
            rows, lines = computed(table, pipec, judges)
            compare(rows, f"---|\n{rows}\n" in printed)
            for line in lines:
                compare(line, f" {line} " in f" {words(printed)} ")
    if not names or "measured" in names:
        line = over_all(judges)
        compare(line, f" {line} " in f" {words(printed)} ")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
