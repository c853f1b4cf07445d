# SPDX-License-Identifier: GPL-2.0
"""Files of rust/ as they would look in the kernel crate."""

import re
import textwrap


def paths_of(text):
    """The paths that the braces of a `use` name, each as a string."""
    paths, depth, part = [], 0, ""
    for char in re.sub(r"//.*", "", text) + ",":
        if char == "," and depth == 0:
            head, brace, rest = part.strip().partition("{")
            if brace:
                paths += [head.strip() + path for path in paths_of(rest.rstrip()[:-1])]
            elif head:
                paths.append(head)
            part = ""
        else:
            depth += {"{": 1, "}": -1}.get(char, 0)
            part += char
    return paths


def braces(paths):
    """The paths as what stands between braces, each first part once."""
    groups = {}
    for path in sorted(set(paths)):
        head, _, rest = path.partition("::")
        groups.setdefault(head, []).append(rest)
    parts = []
    for head, rests in groups.items():
        if rests == [""]:
            parts.append(head)
        else:
            parts.append(f"{head}::{{{braces([rest or 'self' for rest in rests])}}}")
    return ", ".join(parts)


def moved(path):
    """A path within the library, as one within the kernel crate; none if that part stays behind."""
    head, _, rest = path.partition("::")
    if head == "inject" or path.startswith(("kernel::kthread", "kernel::lock_classes")):
        return None
    return f"hmm::{rest}" if head in ("kernel", "mm") else path


def imports(text):
    """Merges the imports from the kernel crate and from the library to one `use` in each module."""
    # A declaration with an attribute is kept unchanged.
    pattern = re.compile(r"^(?<!\]\n)( *)use (crate|kernel)::(.*?);\n", flags=re.M | re.S)
    rest = set(re.findall(r"\w+", pattern.sub("", text)))
    found = {}
    for indent, crate, names in (match.groups() for match in pattern.finditer(text)):
        paths = [path for whole in paths_of(names) for path in paths_of(whole)]
        if crate == "crate":
            paths = [path for path in map(moved, paths) if path]
        if indent or "kunit_tests" in text:
            # Drop imports that only the removed tests used.
            paths = [path for path in paths if path.endswith("*") or path.rpartition("::")[2] in rest]
        found.setdefault(indent, []).extend(paths)

    def once(match):
        paths = found.pop(match.group(1), [])
        return f"{match.group(1)}use crate::{{{braces(paths)}}};\n" if paths else ""

    text = pattern.sub(once, text)
    if "kunit_tests" not in text:
        return text

    # The same for other imports of a file of tests.
    def used(match):
        words = set(re.findall(r"\w+", re.sub(r"//.*", "", text.replace(match.group(0), "", 1))))
        paths = [path for path in paths_of(match.group(2)) for path in paths_of(path)]
        paths = [path for path in paths if path.endswith("*") or path.rpartition("::")[2] in words]
        return f"{match.group(1)}{{{braces(paths)}}};\n" if paths else ""

    return re.sub(r"^(use super::)(\{.*?\});\n", used, text, flags=re.M | re.S)


def without_blocks(text, begin):
    """Without the statements that begin so, up to the brace that closes them."""
    return re.sub(rf"^( *){begin}.*\{{\n(?:.*\n)*?\1\}}\n", "", text, flags=re.M)


def without_tests(text, word):
    """Without the tests that need `word`."""
    def kept(match):
        return "" if word in match.group(0) else match.group(0)
    return re.sub(r"^    #\[test\]\n(?:.*\n)*?    \}\n\n?", kept, text, flags=re.M)


def decided(text, series):
    """Returns the text without items for other series than `series`."""
    this = f"hmm_series_{series.replace('.', '_')}"
    kept = []
    # An item with the attributes and comments before it.
    for item in re.findall(r"(?:.+\n)*?(?:\}|.*[;}])\n(?:\n|\Z)|\n|.+\n", text):
        attribute = re.search(r"^#\[cfg\((not\()?(hmm_series_\w+)\)*\]\n", item, flags=re.M)
        if attribute and (attribute.group(2) == this) == bool(attribute.group(1)):
            continue
        kept.append(re.sub(r"^#\[cfg\(.*hmm_series.*\]\n", "", item, flags=re.M))
    return "".join(kept)


def filled(text):
    """Paragraphs of comments with lines of more than 100 columns, anew. Lists stay lists, blocks as they are."""
    lines = []
    paragraph = []

    def flush():
        if any(len(line) > 100 for line in paragraph):
            mark, item = re.match(r"(\s*//[/!]? )(- |\d+\. )?", paragraph[0]).groups()
            words = " ".join(line.strip().lstrip("/!").strip() for line in paragraph)
            paragraph[:] = textwrap.wrap(words, 100, initial_indent=mark, break_long_words=False, break_on_hyphens=False,
                                         subsequent_indent=mark + " " * len(item or ""))
        lines.extend(paragraph)
        paragraph.clear()

    block = False
    for line in text.split("\n"):
        comment = re.match(r"\s*//[/!]? ?(.*)", line)
        content = comment.group(1) if comment else ""
        if content.startswith("```"):
            block = not block
        if not content or block or content.startswith(("```", "#", "|")):
            flush()
            lines.append(line)
            continue
        if re.match(r"- |\d+\. ", content) or paragraph and line.index("//") != paragraph[-1].index("//"):
            flush()
        paragraph.append(line)
    flush()
    return "\n".join(lines)


def without_options(text):
    """Without the options of the library: all parts are there, and KUnit has the tests."""
    option = r"^ *#\[cfg\((?:all\()?CONFIG_RUST_HMM_[\w, ]+\)+\]\n"
    text = re.sub(option + r"(?= *mod tests;)", '#[cfg(CONFIG_KUNIT = "y")]\n', text, flags=re.M)
    return re.sub(option, "", text, flags=re.M)


def examples(text):
    """Examples in doc comments use the kernel crate from outside. Its name is hidden from later changes."""
    def outside(match):
        block = match.group(0).replace("rust_hmm::policy::", "rust_hmm::mm::page_set::")
        return re.sub(r"\brust_hmm::(kernel|mm)::", "kernel::hmm::", block).replace("kernel::", "\0::")
    return re.sub(r"^ *//[/!] ```\n(?:.*\n)*?^ *//[/!] ```\n", outside, text, flags=re.M)


def rust(text, series, private):
    """A file of Rust, which only its siblings use if it is private."""
    text = examples(text)
    text = without_options(text)
    text = decided(text, series) if "hmm_series" in text else text
    text = without_blocks(text, r"if fails\(FailPoint::")
    text = without_blocks(text, r"if is_injecting\(\)")
    text = re.sub(r" \|\| fails\(FailPoint::\w+\)", "", text)
    # An argument of a C helper that widens a race window for a test.
    text = re.sub(r"\b(?:\w+ && )?fails\(FailPoint::\w+\)", "false", text)
    text = re.sub(r"lock_classes::(\w+)\(\)", r'(c"hmm::\1", crate::static_lock_class!())', text)
    text = without_tests(text, "Thread::")
    text = re.sub(r"\bfalse \|\| ", "", text)
    text = without_tests(text, "ArmedPoint::")
    # KUnit's macros warn in an unsafe block.
    text = without_tests(text, "hmm-kunit-narrow")
    # Tests that compare constants of macros with C.
    text = without_tests(text, "rust_hmm_kunit_")
    # Without the counts of alarms.
    text = re.sub(r"\bcrate::alarm!\(\s*\w+,\s*", "pr_err!(", text)
    # Suites without tests.
    text = re.sub(r"^#\[kunit_tests\(\w+\)\]\nmod \w+ \{\n((?:.*\n)*?)\}\n", lambda suite: suite.group(0) if "#[test]" in suite.group(1) else "",
                  text, flags=re.M)
    text = imports(text)
    text = re.sub(r"\bcrate::(?:mm|kernel)\b(?=::|\))", "crate::hmm", text)
    text = re.sub(r"\bkernel::", "crate::", text)
    # Items that are internal to the library become the interface for drivers.
    text = text.replace("pub(crate) ", "pub(super) " if private else "pub ")
    return filled(text.replace("bindings::rust_hmm_", "bindings::hmm_")).replace("\0::", "kernel::")


def aligned(text):
    """Each continuation line below the parenthesis that is open. Macros and lines below a final "(" stay."""
    lines, opened, comment = [], [], False
    for line in text.split("\n"):
        if opened and opened[-1] and line.strip() and not comment and not line.endswith("\\"):
            line = "\t" * (opened[-1] // 8) + " " * (opened[-1] % 8) + line.lstrip()
        lines.append(line)
        if line.startswith("#") or line.endswith("\\"):
            continue
        if not opened and re.match(r"\s*/\*", line):
            comment = "*/" not in line
            continue
        if comment:
            comment = "*/" not in line
            continue
        # Without strings, characters and comments, in the same columns.
        code = re.sub(r'"(?:\\.|[^"])*"|\'(?:\\.|[^\'])+\'|/\*.*?\*/', lambda match: "x" * len(match.group(0)), line)
        column = 0
        for index, char in enumerate(code):
            column += 8 - column % 8 if char == "\t" else 1
            if char == "(":
                opened.append(0 if index + 1 == len(code) else column)
            elif char == ")" and opened:
                opened.pop()
    return "\n".join(lines)


def types(text):
    """The definitions of types, with their comments, and the rest."""
    pattern = re.compile(r"^(?:/\*(?:(?!\*/)[\s\S])*?\*/\n)?(?:struct|enum) hmm_\w+ \{\n[\s\S]*?^\};\n\n?", flags=re.M)
    found = [match.strip() for match in pattern.findall(text)]
    text = pattern.sub("", text)
    # With the lengths of their arrays.
    for name in re.findall(r"\[([A-Z]\w+)\]", "\n".join(found)):
        define = re.search(rf"^(?:/\*(?:(?!\*/)[\s\S])*?\*/\n)?#define {name} .*\n\n?", text, flags=re.M)
        if define:
            found.insert(0, define.group(0).strip())
            text = text.replace(define.group(0), "", 1)
    return found, text


def inlined(text):
    """Functions that use static objects or functions of the file are not inlined into Rust."""
    statics = set(re.findall(r"^static [^;={(]*?\b(\w+)(?:\(|\[| =|;)", text, flags=re.M))
    statics |= set(re.findall(r"^static (?:DEFINE|LIST|DECLARE)_\w+\((\w+)", text, flags=re.M))
    statics |= set(re.findall(r"^(\w+)\([^;]*?\)\n\{", text, flags=re.M))

    def kept(match):
        body = set(re.findall(r"\w+", match.group(2)))
        return match.group(2) if body & statics else match.group(0)

    return re.sub(r"^(__rust_helper )((?:.*\n)*?\}\n)", kept, text, flags=re.M)


def functions_of(text):
    """The names of the helpers in a file of C."""
    return set(re.findall(r"^(?!static).*?\b(rust_hmm_\w+)\(.*(?:\n\t.*)*\n\{", text, flags=re.M))


def prototypes(text):
    """A prototype for each helper in a file, because other helpers may come before it."""
    found = re.findall(r"^(?:__rust_helper )?((?!static)[a-z][^;{}]*?\brust_helper_hmm_\w+\([^;{}]*\))\n\{", text, flags=re.M)
    return [aligned(one + ";") for one in found]


def c(text, functions):
    """A file of C, as one of rust/helpers: exported by the kernel's build, declared for Rust only."""
    text = text.replace("#ifdef CONFIG_RUST_HMM_KUNIT_TEST", "#if IS_BUILTIN(CONFIG_KUNIT)")
    text = re.sub(r'^(EXPORT_SYMBOL.*|#include (".*"|<linux/export.h>))\n', "", text, flags=re.M)
    text = re.sub(r"^(?=(?!static)[a-z].*?\b(?:rust_hmm_\w+)\([^;]*(?:\n\t[^;]*)*\n\{)", "__rust_helper ", text,
                  flags=re.M)

    def kernels(match):
        kind, word = match.groups()
        return (kind or "") + word.replace("rust_", "rust_helper_" if word in functions and not kind else "", 1)

    text = inlined(re.sub(r"\b(struct |enum )?(rust_hmm_\w+)", kernels, text))
    return re.sub(r"\n{3,}", "\n\n", aligned(text))
