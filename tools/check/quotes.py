# SPDX-License-Identifier: GPL-2.0
"""Compares code blocks of the documents with the samples: see tools/check/quotes."""

import pathlib
import re
import sys
import textwrap

MARK = re.compile(r'\.\. code of (?P<file>\S+), (?P<after>after )?"(?P<first>.+?)"'
                  r' to (?:the end|(?P<before>before )?"(?P<last>.+)")')
LANGUAGES = {".rs": "rust", ".c": "c", "": "make"}


class Wrong(Exception):
    """A mark that cannot be followed."""


def find(lines, text, start, path):
    """The index of the first line from `start` that contains `text`, or is `text` (tools/check/quotes)."""
    whole = text.startswith(" ") or text == "}"
    for index in range(start, len(lines)):
        if lines[index] == text if whole else text in lines[index]:
            return index
    raise Wrong(f'{path} has no line with "{text}"')


def quoted(top, mark):
    """The lines of the file that `mark` names, without their common indentation."""
    path = mark["file"]
    if not (top / path).is_file():
        raise Wrong(f"there is no file {path}")
    lines = (top / path).read_text().splitlines()
    first = find(lines, mark["first"], 0, path)
    end = len(lines)
    if mark["last"]:
        end = find(lines, mark["last"], first + 1, path) + (not mark["before"])
    part = lines[first + bool(mark["after"]):end]
    return textwrap.dedent("\n".join(part)).strip("\n").splitlines()


def updated(top, text):
    """`text` with each block as it must be, and the marks whose blocks differed."""
    lines, result, differ = text.splitlines(), [], []
    index = 0
    while index < len(lines):
        line = lines[index]
        result.append(line)
        index += 1
        if not line.startswith(".. code of "):
            continue
        mark = MARK.fullmatch(line)
        if not mark:
            raise Wrong(f"not understood: {line}")
        # The block that follows, if there is one: the directive and what is indented below it.
        begin = index
        while index < len(lines) and (not lines[index] or lines[index].startswith(("   ", ".. code-block::"))):
            index += 1
        while index > begin and not lines[index - 1]:
            index -= 1
        language = LANGUAGES[pathlib.Path(mark["file"]).suffix]
        block = ["", f".. code-block:: {language}", ""]
        block += ["    " + code if code else "" for code in quoted(top, mark)]
        if block != lines[begin:index]:
            differ.append(line)
        result += block
    return "\n".join(result) + "\n", differ


def self_test(top):
    """A block with a changed line, and marks that name nothing, must be reported."""
    mark = '.. code of samples/template/template.rs, "impl MemoryOps for" to before "// Step 2"'
    right, _ = updated(top, mark + "\n\nText.\n")
    if updated(top, right)[1]:
        raise Wrong("a right block is reported")
    if not updated(top, right.replace("    impl", "    Impl"))[1]:
        raise Wrong("a wrong block is not reported")
    for wrong in (mark.replace("template.rs", "none.rs"), mark.replace("// Step 2", "no such line"), mark + "!"):
        try:
            updated(top, wrong + "\n")
        except Wrong:
            continue
        raise Wrong(f"not reported: {wrong}")


def main():
    top, options = pathlib.Path(sys.argv[1]), sys.argv[2:]
    if "--self-test" in options:
        self_test(top)
        return 0
    bad = 0
    for path in sorted((top / "Documentation").glob("*.rst")):
        text = path.read_text()
        try:
            new, differ = updated(top, text)
        except Wrong as error:
            print(f"{path.name}: {error}")
            bad = 1
            continue
        if "--write" in options:
            if new != text:
                path.write_text(new)
            continue
        for line in differ:
            print(f"{path.name}: not the code of the sample (tools/check/quotes --write): {line}")
            bad = 1
    return bad


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Wrong as error:
        sys.exit(f"tools/check/quotes: {error}")
