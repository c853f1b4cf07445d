# SPDX-License-Identifier: GPL-2.0
"""Checks the commands, paths and tests that the README, CONTRIBUTING.md, CHANGELOG.md and Documentation/ name; see tools/check/doc-commands.

usage: doc-commands.py [--list | --print CHAPTER] TOP KERNEL-SOURCE
"""

import argparse
import os
import re
import shlex
import subprocess
import sys

OURS = ("rust/", "samples/", "tests/", "tools/", "Documentation/", "debian/", ".ci/")
KERNEL = ("tools/testing/", "lib/", "mm/", "include/linux/", "drivers/gpu/", "scripts/")
# First word of a line in a block of commands.
STARTS = re.compile(r"(make|apt|trace-cmd|perf|bpftrace|modprobe|insmod|rmmod|cd|cp|git|sudo|hmm-[a-z-]+|hmmctl|\./\S+|tools/\S+|\.ci/\S+)(\s|$)")
# Commands of each system.
USUAL = {"cat", "cp", "dmesg", "echo", "grep", "ls", "sudo", "./try"}
# An assignment before a command.
ASSIGNED = re.compile(r"[A-Z_]+=\S*$")


class Problem(Exception):
    """An unknown command or path."""


class Scripts:
    """The shell scripts of tools/ and tests/, and which of them each one calls."""

    def __init__(self, top):
        self.top = top

    def text(self, path):
        """A script without its comments."""
        try:
            with open(f"{self.top}/{path}", encoding="utf-8") as file:
                lines = file.read().splitlines()
        except UnicodeDecodeError:
            return ""
        return "\n".join(line for line in lines if not line.lstrip().startswith("#"))

    def usage(self, path):
        """The comment at the head of a script."""
        head = []
        with open(f"{self.top}/{path}", encoding="utf-8") as file:
            for line in file:
                if not line.startswith("#"):
                    break
                head.append(line[1:])
        return "".join(head)

    def is_script(self, path):
        """Whether it is a file that can be run."""
        full = f"{self.top}/{path}"
        return os.path.isfile(full) and os.access(full, os.X_OK)

    def called(self, path):
        """Scripts that this one runs."""
        here = os.path.dirname(path)
        found = set()
        for prefix, name in re.findall(r"\$\{?(HMM_TOP\}?/(?:tools|tests)|t|here)/([\w/-]+)", self.text(path)):
            folder = {"here": here, "t": "tools"}.get(prefix, prefix.rpartition("/")[2])
            name = f"{folder}/{name}"
            if self.is_script(name):
                found.add(name)
        return found

    def reached(self, path):
        """All scripts that run when this one does."""
        todo, seen = [path], set()
        while todo:
            script = todo.pop()
            if script not in seen:
                seen.add(script)
                todo += self.called(script)
        return seen


class Checker:
    """Commands that exist in this checkout, and the test that runs each of them."""

    def __init__(self, top, kernel):
        self.top, self.kernel = top, kernel
        self.scripts = Scripts(top)
        self.ci = self.scripts.reached("tests/run/all")
        # Proofs that need no kernel have one runner each.
        paths = [f"tests/run/{name}" for name in sorted(os.listdir(f"{top}/tests/run"))]
        paths += [f"tests/{name}/run" for name in sorted(os.listdir(f"{top}/tests"))]
        suites = [path for path in paths if self.scripts.is_script(path)]
        self.suites = {suite: self.scripts.reached(suite) for suite in suites}
        with open(f"{top}/Makefile", encoding="utf-8") as file:
            self.variables = set(re.findall(r"\b([A-Z_]{2,}|T)\b", file.read()))
        self.listed = self.read_list()
        self.used = set()
        self.made = {}

    def read_list(self):
        """Commands that a script runs in other words, as tools/check/doc-commands.list has them."""
        listed = {}
        with open(f"{self.top}/tools/check/doc-commands.list", encoding="utf-8") as file:
            for line in file:
                line = line.strip()
                if line and not line.startswith("#"):
                    command, script, text = (part.strip() for part in line.split("|", 2))
                    listed[command] = (script, text)
        return listed

    def by_list(self, words):
        """Who runs a command of the list; None if it is not in there."""
        for count in range(len(words), 0, -1):
            key = " ".join(words[:count])
            if key in self.listed:
                self.used.add(key)
                script, text = self.listed[key]
                if text not in self.scripts.text(script):
                    raise Problem(f"{script} does not run it: no '{text}' in there")
                return script
        return None

    def runner(self, scripts, words):
        """Which test runs these scripts."""
        if scripts and all(script in self.ci for script in scripts):
            return "make test"
        listed = self.by_list(words)
        if listed:
            return listed
        left = [script for script in scripts if script not in self.ci]
        if left and all(script in self.suites for script in left):
            return "is a test itself"
        for suite, reached in self.suites.items():
            if left and all(script in reached for script in left):
                return suite
        raise Problem(f"no test runs it ({', '.join(left) or 'no script'}); if one does, see tools/check/doc-commands.list")

    def make(self, words):
        """Checks a make command. Returns who runs it."""
        if "-C" in words:
            listed = self.by_list(words)
            if not listed:
                raise Problem("no test runs it")
            return listed
        targets, assigns = [], []
        for word in words[1:]:
            name, assigned, _ = word.partition("=")
            if assigned:
                if name not in self.variables and not name.startswith("CONFIG_"):
                    raise Problem(f"the Makefile has no variable {name}")
                assigns.append(word)
            elif word.isupper():
                raise Problem(f"unknown command: {word}")
            else:
                targets.append(word)
        scripts = []
        for target in targets or ["modules"]:
            key = (target, *assigns)
            if key not in self.made:
                run = subprocess.run(["make", "-n", "--no-print-directory", *key], cwd=self.top,
                                     capture_output=True, text=True, check=False)
                self.made[key] = run
            run = self.made[key]
            if run.returncode:
                raise Problem(run.stderr.strip())
            scripts += re.findall(r"\b(?:tools|tests)/[\w/-]+", run.stdout)
        return self.runner(scripts, words)

    def options(self, words, known, crates):
        """Checks that each option is known by a usage or by a program."""
        for word in words:
            match = re.match(r"(--[a-z][a-z0-9-]*)", word)
            if not match or re.search(rf"{match[1]}\b(?!-)", known):
                continue
            name = match[1][2:].replace("-", "_")
            if not any(self.has_field(crate, name) for crate in crates):
                raise Problem(f"unknown option {match[1]}")

    def crate(self, name):
        """Where the sources of a program are."""
        folders = {"hmmctl": "tools/hmmctl", "hmm-audit": "tools/audit", "hmm-demo": "samples/demo"}
        return f"{self.top}/{folders.get(name, name.replace('hmm-', 'tests/', 1))}"

    def has_field(self, crate, name):
        """Whether a program has the option."""
        for folder, _, files in os.walk(f"{self.crate(crate)}/src"):
            for file in files:
                with open(f"{folder}/{file}", encoding="utf-8") as source:
                    if re.search(rf"#\[arg\([^\]]*long[^\]]*\)\]\s+(?:pub )?{name}:", source.read()):
                        return True
        return False

    def tool(self, words):
        """Checks a script of ours, or of the kernel's."""
        path = words[0]
        if path.startswith(KERNEL):
            self.path(path)
            return self.runner([], words)
        if not self.scripts.is_script(path):
            raise Problem(f"no such tool: {path}")
        usage = self.scripts.usage(path)
        own = words[1:words.index("--")] if "--" in words else words[1:]
        self.options(own, usage, re.findall(r"OPTION of ([\w-]+)", usage))
        return self.runner([path], words)

    def program(self, words):
        """Checks a program of the workspace in Cargo.toml."""
        name = words[0]
        if not os.path.isdir(self.crate(name)):
            raise Problem(f"no such program: {name}")
        if name == "hmmctl" and words[1:2] and not os.path.isfile(f"{self.crate(name)}/src/{words[1]}.rs") \
                and not words[1].startswith("-"):
            raise Problem(f"hmmctl has no {words[1]}")
        self.options([word for word in words[1:] if word not in ("--help", "--version")], "", [name])
        if name == "hmmctl":
            # End-to-end tests cover its output.
            words = ["tests/run/e2e"]
            return self.runner(words, words)
        for script in sorted(self.ci):
            if re.search(rf"(--\s+(\\\s+)?|sh -c \S*exec ){name}\b", self.scripts.text(script)):
                return f"make test ({script})"
        return self.runner([], words)

    def command(self, text):
        """Checks one command. Returns its words and who runs it."""
        text = re.sub(r"\s#.*", "", text)
        runs = []
        words = []
        for word in [*shlex.split(re.sub(r"(?<=\S);", " ;", re.sub(r"\[|\]|\.\.\.", " ", text))), ";"]:
            if word in (";", "&&"):
                runs.append(self.part(words))
                words = []
            else:
                words.append(word)
        return ", ".join(run for run in runs if run)

    def part(self, words):
        """As above, without "&&"."""
        while words and (ASSIGNED.match(words[0]) or words[0] == "sudo"):
            words.pop(0)
        if not words or words[0] in USUAL:
            return None
        if words[0] == "make":
            return self.make(words)
        if words[0] == ".ci/run":
            return "CI"
        if words[0].startswith(("tools/", "tests/")):
            return self.tool(words)
        if words[0] == "hmmctl" or words[0].startswith("hmm-") and not words[0] == "hmm-tests":
            return self.program(words)
        return self.runner([], words)

    def path(self, text):
        """Checks a path of the checkout or of the kernel."""
        top = self.kernel if text.startswith(KERNEL) else self.top
        path = re.sub(r"[:*].*", "", text).rstrip("/")
        if not os.path.exists(f"{top}/{path}"):
            raise Problem(f"no such file: {text}")


class Tests:
    """Names of the end-to-end tests and of KUnit's."""

    # In these chapters, a name of three or more words is the name of a test.
    CHAPTERS = ("faultless.rst", "lifecycle.rst")

    def __init__(self, top):
        self.names = set()
        for folder in ("tests/e2e/src", "rust"):
            for path, _, files in os.walk(f"{top}/{folder}"):
                for file in files:
                    if not file.endswith(".rs"):
                        continue
                    with open(f"{path}/{file}", encoding="utf-8") as source:
                        text = source.read()
                    for group, name in re.findall(r'Test::new\(\s*"(\w+)",\s*"(\w+)"', text):
                        self.names.update((name, f"{group}.{name}"))
                    self.names.update(re.findall(r"#\[test\]\s+fn (\w+)", text))
        self.groups = {name.partition(".")[0] for name in self.names if "." in name}

    def names_one(self, chapter, text):
        """Whether this is meant to be the name of a test, or of some ("*")."""
        if re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_]*\*?", text):
            return text.partition(".")[0] in self.groups
        return bool(re.fullmatch(r"h\d\d_[a-z0-9_]*\*?", text) or
                    (chapter in self.CHAPTERS and re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+){2,}", text)))

    def check(self, text):
        """Checks that there is one."""
        if text not in self.names and not (text.endswith("*") and any(n.startswith(text[:-1]) for n in self.names)):
            raise Problem("no such test")


def blocks(lines, markdown):
    """Literal blocks: number of the first line, and their lines."""
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        literal = line.rstrip().endswith("::") and not re.match(r"\s*\.\. (?!code-block)", line)
        if not (literal or re.match(r"\s*\.\. code-block::", line) or (markdown and not line.strip())):
            continue
        indent = -1 if markdown else len(line) - len(line.lstrip())
        begin = number
        while begin < len(lines) and not lines[begin].strip():
            begin += 1
        end = begin
        depth = 4 if markdown else indent + 1
        while end < len(lines) and (not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) >= depth):
            end += 1
        if end > begin:
            yield begin + 1, lines[begin:end]
            number = end


def commands(block):
    """Commands of a block, continuation lines joined; none if it is not of commands."""
    lines = [line for line in block[1] if line.strip()]
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    if not any(STARTS.match(line.strip()) for line in lines):
        return
    joined = ""
    for line in block[1]:
        if not line.strip():
            continue
        deeper = len(line) - len(line.lstrip()) > margin
        if joined and (deeper or joined.endswith("\\")):
            joined = joined.rstrip("\\ ") + " " + line.strip()
            continue
        if joined:
            yield joined
        joined = line.strip()
    if joined:
        yield joined


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--print", metavar="CHAPTER")
    parser.add_argument("top")
    parser.add_argument("kernel")
    args = parser.parse_args()
    if args.print:
        with open(f"{args.top}/Documentation/{args.print}.rst", encoding="utf-8") as source:
            for block in blocks(source.read().splitlines(), False):
                for text in commands(block):
                    print(re.sub(r"\s#.*", "", text))
        return
    checker = Checker(args.top, args.kernel)
    tests = Tests(args.top)
    folder = f"{args.top}/Documentation"
    files = [f"{args.top}/{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")] + sorted(f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(".rst"))
    bad = 0
    runners = {}

    def check(file, number, text, function):
        nonlocal bad
        try:
            by = function(text)
        except (Problem, ValueError) as problem:
            bad += 1
            print(f"{os.path.relpath(file, args.top)}:{number}: {text}: {problem}")
        else:
            if by:
                runners[text] = by

    for file in files:
        with open(file, encoding="utf-8") as source:
            lines = source.read().splitlines()
        markdown = file.endswith(".md")
        inside = set()
        for block in blocks(lines, markdown):
            inside.update(range(block[0], block[0] + len(block[1])))
            for text in commands(block):
                check(file, block[0], text, checker.command)
        literal = r"`([^`]+)`" if markdown else r"``([^`]+)``"
        for number, line in enumerate(lines, 1):
            if number in inside:
                continue
            for text in re.findall(literal, line):
                if re.match(r"(make|apt|tools/\S+|hmm-\S+|\.ci/\S+) \S", text):
                    check(file, number, text, checker.command)
                elif text.startswith(OURS + KERNEL) and not re.search(r"[\s{}<>]", text):
                    check(file, number, text, checker.path)
                elif tests.names_one(os.path.basename(file), text):
                    check(file, number, text, tests.check)
    for key in sorted(set(checker.listed) - checker.used):
        bad += 1
        print(f"tools/check/doc-commands.list: no document names '{key}'")
    if args.list:
        width = min(max(map(len, runners)), 70)
        for text, by in sorted(runners.items()):
            print(f"{text:{width}}  {by}")
    print(f"{len(runners)} commands")
    if not runners:
        print("no commands were found")
        bad += 1
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
