#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""usage: make.py TOP LINUX SERIES REPOSITORY: commits of rust/mm of TOP for the kernel crate of LINUX, see tools/patches."""

import pathlib
import re
import shutil
import subprocess
import sys

import rewrite

top, linux, series, repository = sys.argv[1:]
rust = pathlib.Path(top) / "rust"
linux = pathlib.Path(linux)
repository = pathlib.Path(repository)
KCONFIG = ("HMM_MIRROR", "DEVICE_PRIVATE", "DMA_SHARED_BUFFER")
INCLUDES = ("dma-fence", "hmm", "memremap", "migrate", "mmu_notifier", "rmap", "shrinker")
# Headers of the types in those of the helpers.
TYPES = ("hmm-dma", "mm_types", "refcount", "spinlock", "task_work", "types", "workqueue")
CHANGED = ("MAINTAINERS", "rust/bindings/bindings_helper.h", "rust/helpers/helpers.c", "rust/kernel/lib.rs")


def git(*arguments, **options):
    """Runs git in the repository."""
    return subprocess.run(("git", "-C", repository, *arguments), check=True, **options)


def change(path, pattern, text):
    """Puts `text` before the first match of `pattern`."""
    file = repository / path
    old = file.read_text()
    place = re.search(pattern, old, flags=re.M)
    if not place:
        sys.exit(f"{path} has no place for {text!r}")
    file.write_text(old[: place.start()] + text + old[place.start():])


def begin():
    """The files that are changed, as the kernel has them."""
    repository.mkdir(parents=True)
    for path in (*CHANGED, ".rustfmt.toml"):
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(linux / path, repository / path)
    git("init", "-q", "-b", "base")
    git("add", "-A")
    git("commit", "-q", "-m", f"Linux {series}")


def patches():
    """Of each patch: its files, its subject, its text."""
    text = (pathlib.Path(__file__).parent / "series").read_text()
    for block in re.split(r"^patch ", text, flags=re.M)[1:]:
        files, subject, body = re.fullmatch(r"(.*)\nsubject (.*)\n((?s:.*))", block).groups()
        yield files.split(), subject, body.strip()


def source_of(file):
    """Where it is in the library."""
    paths = (rust / folder / file for folder in ("mm", "kernel", "helpers"))
    return next(path for path in paths if path.exists())


def add_rust(file):
    """A file of Rust, with those below the folder of its name."""
    path = source_of(file)
    folder = path.with_suffix("")
    for one in (path, *sorted(folder.rglob("*.rs"))):
        to = repository / "rust/kernel/hmm" / one.relative_to(path.parent)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(rewrite.rust(one.read_text(), series, private=file == "compat.rs"))


def add_types(types):
    """Types that Rust and helpers share, in the header from which the kernel generates bindings."""
    header = repository / "rust/helpers/hmm.h"
    if not header.exists():
        header.write_text("/* SPDX-License-Identifier: GPL-2.0 */\n/* Types of the helpers for heterogeneous memory. */\n"
                          "#ifndef __RUST_HELPERS_HMM_H\n#define __RUST_HELPERS_HMM_H\n\n"
                          + "".join(f"#include <linux/{name}.h>\n" for name in TYPES) + "\n#endif\n")
        change("rust/bindings/bindings_helper.h", r"^/\* `bindgen` gets", '#include "../helpers/hmm.h"\n\n')
    text = header.read_text()
    header.write_text(text.removesuffix("#endif\n") + "\n\n".join(types) + "\n\n#endif\n")


def add_c(file):
    """A file of C."""
    name = f"hmm_{file}"
    functions = set().union(*(rewrite.functions_of(path.read_text()) for path in (rust / "helpers").glob("*.c")))
    types, text = rewrite.types(rewrite.c(source_of(file).read_text(), functions))
    if file == "fence.c":
        # The interface for drivers in C has this type.
        interface = rewrite.c((rust.parent / "include/rust_hmm.h").read_text(), functions)
        types = [one for one in rewrite.types(interface)[0] if "struct hmm_fence_watch {" in one] + types
    types += rewrite.prototypes(text)
    if types:
        add_types(types)
        last = [match.end() for match in re.finditer(r"^#include <.*>\n", text, flags=re.M)][-1]
        text = text[:last] + '\n#include "hmm.h"\n' + text[last:]
    (repository / "rust/helpers" / name).write_text(text)
    condition = " && \\\n\t".join(f"defined(CONFIG_{option})" for option in KCONFIG)
    helpers = (repository / "rust/helpers/helpers.c").read_text()
    if "#endif /* hmm */" not in helpers:
        change("rust/helpers/helpers.c", r'^#include "(hr|i)\w+\.c"', f'#if {condition}\n#endif /* hmm */\n')
    change("rust/helpers/helpers.c", r"^#endif /\* hmm \*/", f'#include "{name}"\n')


def module(name):
    """The line by which rust/mm.rs or rust/kernel.rs has the module, with its attributes."""
    text = "".join((rust / file).read_text() for file in ("mm.rs", "kernel.rs"))
    found = re.search(rf"^((?:#\[.*\]\n)*)(?:pub(?:\(crate\))? )?mod {name};\n", text, flags=re.M)
    visible = "pub " if "pub" in found.group(0) else ""
    return rewrite.without_options(f"{found.group(1)}{visible}mod {name};\n")


def head_of(modules):
    """rust/kernel/hmm.rs with these modules."""
    docs = []
    lines = (rust / "mm.rs").read_text().split("\n")
    lines += [line for line in (rust / "kernel.rs").read_text().split("\n") if line.startswith("//! - ")]
    for line in lines:
        named = re.findall(r"\[?`(\w+)`\]? has", line)
        if not line.startswith("//!") or "patches" in line:
            continue
        if line.startswith("//! - ") and not all(name in modules for name in named):
            continue
        docs.append(line)
    lines = rewrite.filled("\n".join(docs)) + "\n//!\n//! C header: [`include/linux/hmm.h`](srctree/include/linux/hmm.h)\n\n"
    return "// SPDX-License-Identifier: GPL-2.0\n\n" + lines + "".join(module(name) for name in sorted(modules))


def maintainers(files):
    """The entry, or a line for each new file in it."""
    path = repository / "MAINTAINERS"
    entry = "HETEROGENEOUS MEMORY MANAGEMENT [RUST]"
    mail = git("config", "user.email", capture_output=True, text=True).stdout.strip()
    person = git("config", "user.name", capture_output=True, text=True).stdout.strip()
    old = path.read_text()
    if entry not in old:
        new = f"{entry}\nM:\t{person} <{mail}>\nL:\tlinux-mm@kvack.org\nL:\trust-for-linux@vger.kernel.org\nS:\tMaintained\n"
        change("MAINTAINERS", r"^HFI1 DRIVER$|^HFS FILESYSTEM$|^HG\w|^HI\w|^HISILICON", new + "\n")
        old = path.read_text()
    begin_of = old.index(entry)
    end = old.index("\n\n", begin_of) + 1
    lines = sorted({*re.findall(r"^F:.*$", old[begin_of:end], flags=re.M), *(f"F:\t{file}" for file in files)})
    kept = re.sub(r"^F:.*\n", "", old[begin_of:end], flags=re.M)
    path.write_text(old[:begin_of] + kept + "\n".join(lines) + "\n" + old[end:])


def main():
    """One commit for each patch."""
    begin()
    modules = []
    for number, (files, subject, body) in enumerate(patches()):
        if number == 0:
            change("rust/kernel/lib.rs", r"^(#\[.*\n)*pub mod i\w+;",
                   f"#[cfg(all({', '.join(f'CONFIG_{option}' + ' = \"y\"' for option in KCONFIG)}))]\npub mod hmm;\n")
            for include in INCLUDES:
                helper = repository / "rust/bindings/bindings_helper.h"
                text = helper.read_text()
                line = f"#include <linux/{include}.h>\n"
                if line not in text:
                    lines = re.findall(r"^#include <linux/.*>\n", text, flags=re.M)
                    behind = next((other for other in lines if other > line), None)
                    helper.write_text(text.replace(behind, line + behind, 1))
        for file in files:
            if file.endswith(".rs"):
                add_rust(file)
                modules.append(file.removesuffix(".rs"))
            else:
                add_c(file)
        (repository / "rust/kernel/hmm.rs").write_text(head_of(modules))
        subprocess.run(("rustfmt", "--edition", "2021", "--config-path", repository / ".rustfmt.toml",
                        repository / "rust/kernel/hmm.rs"), check=True)
        git("add", "-A")
        new = git("diff", "--cached", "--name-only", "--diff-filter=A", capture_output=True, text=True).stdout.split()
        maintainers(new)
        git("add", "-A")
        git("commit", "-q", "-s", "-m", f"{subject}\n\n{body}")


main()
