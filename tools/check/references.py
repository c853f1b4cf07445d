# SPDX-License-Identifier: GPL-2.0
"""Checks the names in the comments of rust/ and samples/, and in the documents; see tools/check/references.

usage: references.py [--list | --self-test] TOP KERNEL-SOURCE
"""

import pathlib
import re
import subprocess
import sys

# Folders whose comments are checked, with those whose code has the names.
CHECKED = {"rust": ("rust", "include"), "samples": ("rust", "include", "samples", "tests"),
           "Documentation": ("rust", "include", "samples", "tests", "tools")}
# Crates of others that have modules.
CRATES = ("core", "alloc", "std", "kernel", "gpu", "macros")
# Parts of the kernel's source that are searched for names, and the source of Rust's library.
RUST = ("rust", "include/linux/page-flags.h")
KERNEL = (*RUST, "include", "mm", "kernel", "lib", "fs", "drivers/base", "drivers/iommu", "drivers/char/misc.c", "arch/arm64/include")
FILE = re.compile(r"[\w./-]+\.(rs|c|h|rst|toml|patch)|(rust|samples|tests|tools|Documentation|include|drivers|lib|mm|kernel)/[\w./-]*")
TYPE = re.compile(r"[A-Z][A-Z0-9]*[a-z]\w*")
# Wrong names of each form, for --self-test.
WRONG = ("rust/mirror/nothing.rs", "mirror/nothing", "nothing.rs", "*_no_such_name()", "NothingGuard", "no_such_item", "no_such_call()",
         "Mirror::no_such_item", "Self::no_such_item", "NothingGuard::new", "mirror::no_such_item", "Arc::no_such_item",
         "kernel::no_such_module", "NO_SUCH_*")
LIBRARY = "/usr/lib/rustlib/src/rust/library"
WORD = re.compile(r"[A-Za-z_]\w*")
# Comments and strings of Rust and C. A lifetime is no character.
LEXED = re.compile(r"//[^\n]*|/\*.*?\*/|r#*\"|b?\"(?:\\.|[^\"\\])*\"|'(?:\\[^\n]+?|[^\\'\n])'", flags=re.S)
# A declaration with a body, or a type without one.
DECLARED = re.compile(r"\b(impl|trait|struct|enum|union|mod|type)\b([^;{}=]*)([;{=])")
ITEM = re.compile(r"\b(?:fn|const(?!\s+(?:unsafe\s+)?fn\b)|static|type|struct|enum|union|trait|mod|macro_rules!)\s+(?:mut\s+)?(\w+)")


def without_comments(text):
    """The code, with strings, and with the lines of the comments empty."""
    return LEXED.sub(lambda match: re.sub(r"[^\n]", " ", match.group()) if match.group().startswith(("//", "/*")) else match.group(), text)


def without_strings(code):
    """The code without the contents of its strings and characters, which may have braces."""
    return LEXED.sub('""', code)


def block(code, start):
    """What the brace before `start` encloses, and the same without inner blocks."""
    depth, outer = 1, []
    for match in re.finditer(r"[{}]|[^{}]+", code[start:]):
        char = match.group()
        depth += {"{": 1, "}": -1}.get(char, 0)
        if not depth:
            return code[start:start + match.start()], "".join(outer)
        if depth == 1:
            outer.append(char)
    return code[start:], "".join(outer)


def plain(name):
    """The last part of the path of a type, without its arguments."""
    while "<" in name:
        shorter = re.sub(r"<[^<>]*>", "", name.replace("->", "  "))
        if shorter == name:
            break
        name = shorter
    words = re.findall(r"\w+", re.split(r"\bwhere\b", name)[0])
    return words[-1] if words else ""


def head(text):
    """What is behind the generic parameters of an `impl`."""
    text = text.strip()
    if not text.startswith("<"):
        return text
    depth = 0
    for index, char in enumerate(text):
        depth += {"<": 1, ">": -1}.get(char, 0)
        if char == ">" and text[index - 1] == "-":
            depth += 1
        if not depth:
            return text[index + 1:]
    return ""


class Code:
    """The names of the code."""

    def __init__(self):
        self.words = set()
        # Strings that look like the name of an item: classes of locks.
        self.strings = set()
        self.functions = set()
        # Of each type and module: its items. Of each type: the traits and types whose items it has.
        self.items = {}
        self.bases = {}
        # Of each file: the types that it has or extends, and its names.
        self.types = {}
        self.names = {}

    def add(self, path, code):
        """Adds a file."""
        self.names[str(path)] = set(WORD.findall(code))
        self.words |= self.names[str(path)]
        self.strings.update(re.findall(r"\"(\w+::\w+)\"", code))
        code = without_strings(code)
        self.functions.update(re.findall(r"\b(\w+)!?\s*(?:<[^;{}()]*>)?\(", code))
        self.functions.update(re.findall(r"macro_rules!\s+(\w+)", code))
        if path.suffix != ".rs":
            # Members of structures.
            for kind, name, at in ((match.group(1), match.group(2), match.end()) for match in re.finditer(r"\b(struct|enum|union) (\w+) \{", code)):
                self.items.setdefault(name, set()).update(WORD.findall(block(code, at)[0]))
            return
        for name in {path.stem, path.parent.name if path.stem == "mod" else path.stem}:
            self.items.setdefault(name, set()).update(WORD.findall(code))
        types = self.types.setdefault(str(path), set())
        for match in DECLARED.finditer(code):
            self.declare(code, match, types)

    def declare(self, code, match, types):
        """Adds the items of a type or module."""
        kind, text, end = match.groups()
        if kind == "impl":
            first, _, second = head(text).partition(" for ")
            name = plain(second or first)
            if second:
                self.bases.setdefault(name, set()).add(plain(first))
        else:
            name = text.split()[0] if text.split() else ""
            name = re.match(r"\w*", name).group()
            if kind == "trait":
                self.bases.setdefault(name, set()).update(WORD.findall(text.partition(":")[2]))
        if not name:
            return
        if kind != "mod":
            types.add(name)
        items = self.items.setdefault(name, set())
        if kind == "type":
            target = re.match(r"[^;]*", code[match.end():]).group()
            self.bases.setdefault(name, set()).add(plain(target))
        elif end == "{":
            inner, outer = block(code, match.end())
            items.update(ITEM.findall(outer))
            if kind in ("struct", "enum", "union"):
                items.update(WORD.findall(outer))
            elif kind == "mod":
                items.update(WORD.findall(inner))

    def has(self, kind, item):
        """Whether a type or module has an item; None if it is not one of ours."""
        if kind not in self.items:
            return None
        seen, left = set(), [kind]
        while left:
            one = left.pop()
            if one in seen:
                continue
            seen.add(one)
            if item in self.items.get(one, ()):
                return True
            left += self.bases.get(one, ())
        return False


def comments(text):
    """Yields the number of the first line and the text of each paragraph of comments, without blocks of code."""
    lines, number, inside, c_comment = [], 0, False, False
    for at, line in enumerate(text.split("\n"), 1):
        if c_comment:
            content = re.sub(r"^\s*\*?", "", line)
        else:
            match = re.match(r"\s*(?://[/!]?|(/\*\*?))(.*)", line) or re.search(r"(?<![:\"])(?://[/!]?|(/\*\*?))\s(.*)", line)
            content = match.group(2) if match else ""
            c_comment = bool(match and match.group(1))
            if match and match.start() == 0 and re.match(r"\s*(//|/\*)", line) is None:
                yield at, content
                content = ""
        if c_comment and "*/" in content:
            content, c_comment = content.partition("*/")[0], False
        content = content.strip()
        if content.startswith("```"):
            inside = not inside
            content = ""
        if not content or inside:
            if lines:
                yield number, " ".join(lines)
            lines = []
            inside = inside and bool(re.match(r"\s*(//|\*|/\*)", line))
            continue
        number = number if lines else at
        lines.append(content)
    if lines:
        yield number, " ".join(lines)


def named(text):
    """The names in a paragraph: what is in backticks, and functions with their parentheses."""
    spans = re.findall(r"`([^`]+)`", text)
    rest = re.sub(r"`[^`]+`", " ", text)
    return spans + re.findall(r"(?<![\w@.>/<-])[a-z_]\w+\(\)", rest)


class Check:
    """The check of all names."""

    def __init__(self, top, source):
        self.top, self.source = pathlib.Path(top), pathlib.Path(source)
        self.codes = {top: Code() for top in CHECKED}
        self.code = None
        self.files = set()
        allow = (self.top / "tools/check/references.allow").read_text()
        rows = [row.split(" | ") for row in allow.split("\n") if row and not row.startswith("#")]
        self.allowed = {row[0].strip(): row for row in rows}
        self.short = [row for row in rows if len(row) != 2]
        self.used = set()
        # Names of others, with the places that have them.
        self.foreign = {}
        self.foreign_items = {}
        self.bad = []

    def read(self):
        """Reads the code, and returns the comments that are to be checked."""
        found = []
        if (self.top / ".git").exists():
            listed = subprocess.run(("git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard"), cwd=self.top,
                                    check=True, capture_output=True, text=True).stdout.split("\n")
        else:
            listed = [str(path.relative_to(self.top)) for path in self.top.rglob("*") if "build" not in path.parts]
        for name in filter(None, listed):
            path = self.top / name
            if not path.is_file():
                continue
            self.files.add(name)
            first = name.partition("/")[0]
            if name.startswith("Documentation/") and path.suffix == ".rst":
                # Names of the items of types and modules; single names may be those of anything.
                for line, part in enumerate(path.read_text().split("\n"), 1):
                    found += [(name, line, span) for span in re.findall(r"``([A-Za-z_]\w*(?:::\w+)+(?:\(\))?)``", part)]
            codes = [self.codes[one] for one, folders in CHECKED.items() if first in folders]
            if not codes or path.suffix not in (".rs", ".c", ".h"):
                continue
            text = path.read_text()
            stripped = without_comments(text)
            # Names of links, which rustdoc checks.
            links = set(re.findall(r"// \[`(\w+)`\]: [\w:]*::\1$", text, flags=re.M))
            for code in codes:
                code.add(path, stripped)
                code.names[str(path)] |= links
            if first in ("rust", "samples"):
                found += [(name, line, span) for line, part in comments(text) for span in named(part)]
        return found

    def file(self, place, name):
        """Checks a path."""
        if f"rust/{name}.rs" in self.files:
            return
        ours = any(("/" + file).endswith("/" + name) for file in self.files) or any(file.startswith(name.rstrip("/") + "/") for file in self.files)
        if not ours and not (self.source / name).exists():
            self.bad.append((place, name, "no such file"))

    def path(self, place, kind, item):
        """Checks an item of a type or module."""
        if kind in ("Self", "self"):
            types = self.code.types.get(str(self.top / place.partition(":")[0]), ())
            if not any(self.code.has(one, item) for one in types):
                self.bad.append((place, f"{kind}::{item}", "no type of this file has it"))
            return
        if kind in ("super", "crate") or re.fullmatch(r"[A-Z]\d?", kind):
            self.word(place, item)
            return
        if f"{kind}::{item}" in self.code.strings:
            return
        if kind == "kernel" and f"rust/kernel/{item}.rs" in self.files:
            return
        answer = None if kind in CRATES else self.code.has(kind, item)
        # A module of the kernel can have the name of one of ours.
        if answer is None or not answer and kind.islower():
            self.foreign_items.setdefault((kind, item), []).append(place)
        elif not answer:
            self.bad.append((place, f"{kind}::{item}", f"{kind} has no such item"))

    def part(self, place, path):
        """Checks the begin or the end of names, with an asterisk for the rest."""
        fits = re.compile(path.replace("*", r"\w+")).fullmatch
        if not any(map(fits, self.code.words)):
            self.bad.append((place, path, "not in the code"))

    def word(self, place, word, function=False):
        """Checks a single name."""
        file = str(self.top / place.partition(":")[0])
        if TYPE.fullmatch(word):
            # A variant has its name only where it is used.
            if word not in self.code.items and word not in self.code.names.get(file, ()):
                self.foreign.setdefault((word, function), []).append(place)
        elif word not in (self.code.functions if function else self.code.words):
            self.foreign.setdefault((word, function), []).append(place)

    def span(self, place, span):
        """Checks what is in backticks."""
        if span in self.allowed:
            self.used.add(span)
            return
        text = re.sub(r"^(mod|fn|struct|enum|trait|macro|type|const|method|field|value|variant)@", "", span)
        is_module = re.fullmatch(r"\w+(/\w+)+", text) and (self.top / "rust" / text.partition("/")[0]).is_dir()
        if is_module or FILE.fullmatch(text):
            self.file(place, text)
            return
        called = re.fullmatch(r"([\w:.]+)!?\((?:[^()]|\(\))*\)", text)
        for path in re.findall(r"(?<!')\b[A-Za-z_]\w*(?:(?:<[\w, ]*>)?::\w+)*\*?|(?<!\S)\*\w+", text):
            if "*" in path:
                self.part(place, path)
                continue
            parts = [re.sub(r"<.*", "", part) for part in path.split("::")]
            if len(parts) > 1:
                self.path(place, parts[-2], parts[-1])
            elif len(path) > 1:
                self.word(place, path, function=bool(called and path == called.group(1)))

    def grep(self, folders, *arguments, names=()):
        """Searches the sources of the kernel and of Rust's library."""
        command = ("grep", "-rsw", "--include=*.[chS]", "--include=*.rs", *arguments, *(self.source / folder for folder in folders), LIBRARY)
        return subprocess.run(command, input="\n".join(names), capture_output=True, text=True, check=False).stdout.split("\n")

    def others(self):
        """Looks up all other names at once."""
        found = set()
        # Names of types are those of Rust.
        types = {name for name, _ in self.foreign if TYPE.fullmatch(name)}
        for names, folders in ((types, RUST), ({name for name, _ in self.foreign} - types, KERNEL)):
            if names:
                lines = self.grep(folders, "-hF", "-f", "-", names=sorted(names))
                # Without comments, which may have old names themselves.
                found.update(WORD.findall("\n".join(line for line in lines if not re.match(r"\s*(//|/?\*)", line))))
        for (name, function), places in self.foreign.items():
            if name not in found:
                self.bad += [(place, name + "()" * function, "not in the code") for place in places]
        # A file that declares the type, or is the module, has the item.
        kinds = "|".join(sorted({kind for kind, _ in self.foreign_items} - set(CRATES))) or "-"
        texts = {}
        for file in filter(None, self.grep(RUST, "-lE", rf"(struct|enum|union|trait|type|mod) ({kinds})")):
            text = pathlib.Path(file).read_text()
            for kind in re.findall(rf"\b(?:struct|enum|union|trait|type|mod) ({kinds})\b", text):
                texts.setdefault(kind, []).append(text)
                near, own = pathlib.Path(file).parent, pathlib.Path(file).with_suffix("")
                for path in (near / f"{kind}.rs", near / kind / "mod.rs", own / f"{kind}.rs"):
                    if path.exists():
                        texts[kind].append(path.read_text())
        for (kind, item), places in self.foreign_items.items():
            if kind in CRATES:
                good = (self.source / "rust" / item).exists() or any(self.grep(RUST, "-lE", rf"pub mod {item}"))
            else:
                good = any(re.search(rf"\b{item}\b", text) for text in texts.get(kind, ()))
            if not good:
                self.bad += [(place, f"{kind}::{item}", "not in the code") for place in places]

    def run(self, show):
        """Checks all; returns whether something is wrong."""
        spans = self.read()
        for name, line, span in spans:
            if show:
                print(f"{name}:{line}: {span}")
            self.code = self.codes[name.partition("/")[0]]
            self.span(f"{name}:{line}", span)
        self.others()
        for place, name, reason in sorted(self.bad):
            print(f"{place}: `{name}`: {reason}")
        for name in self.allowed:
            if name not in self.used:
                print(f"tools/check/references.allow: no comment has `{name}`")
        for row in self.short:
            print(f"tools/check/references.allow: want NAME | REASON: {' | '.join(row)}")
        if len(spans) < 1500:
            print(f"only {len(spans)} names were found")
        return bool(self.bad or set(self.allowed) - self.used or self.short or len(spans) < 1500)

    def test(self):
        """Checks that wrong names are reported; returns whether one is not."""
        self.read()
        self.code = self.codes["rust"]
        for line, span in enumerate(WRONG):
            self.span(f"rust/mirror.rs:{line}", span)
        self.others()
        reported = {place for place, _, _ in self.bad}
        missed = [span for line, span in enumerate(WRONG) if f"rust/mirror.rs:{line}" not in reported]
        for span in missed:
            print(f"not reported: `{span}`")
        return bool(missed)


option = sys.argv[1] if sys.argv[1:2] in (["--list"], ["--self-test"]) else ""
check = Check(*sys.argv[1 + bool(option):])
sys.exit(check.test() if option == "--self-test" else check.run(option == "--list"))
