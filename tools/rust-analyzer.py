# SPDX-License-Identifier: GPL-2.0
"""Adds our crates to the rust-project.json of a kernel, and prints it.

usage: rust-analyzer.py FILE TOP BUILD SERIES ROOT ALIAS=DIRECTORY

Paths inside of the hermetic root (ROOT), which also has ALIAS for DIRECTORY, become the host's.
"""

import json
import os
import re
import sys


def crates_of(top):
    """Name, root module and whether it is the library, as the Kbuild file has them."""
    with open(f"{top}/Kbuild", encoding="utf-8") as kbuild:
        for line in kbuild:
            found = re.match(r"(\w+)-y := ((?:rust|samples|tests)/\S+)\.o", line)
            # Modules without a Rust source are in C.
            if found and os.path.exists(f"{top}/{found[2]}.rs"):
                yield found[1], f"{top}/{found[2]}.rs", found[2].startswith("rust/")


def main():
    path, top, build, series, root, alias = sys.argv[1:]
    inside, directory = alias.split("=")
    with open(path, encoding="utf-8") as file:
        project = json.load(file)

    def outside(value):
        if isinstance(value, dict):
            return {key: outside(item) for key, item in value.items()}
        if isinstance(value, list):
            return [outside(item) for item in value]
        if not isinstance(value, str) or not value.startswith("/"):
            return value
        if value.startswith(inside):
            return directory + value[len(inside):]
        return value if value.startswith((top, directory)) else root + value

    # Omit the kernel's own drivers: they are not edited here, and each repeats the whole
    # configuration.
    kernel = next(i for i, crate in enumerate(project["crates"]) if crate["display_name"] == "kernel")
    sample = next(c for c in project["crates"] if c["display_name"] == "rust_minimal")
    crates = project["crates"][: kernel + 1]
    library = None
    with open(f"{top}/Kbuild", encoding="utf-8") as file:
        parts = [f"CONFIG_RUST_HMM_{part}" for part in re.search(r"^hmm_parts := (.*)", file.read(), re.M)[1].split()]
    for name, module, is_library in crates_of(top):
        deps = list(sample["deps"])
        if not is_library:
            deps.append({"crate": library, "name": "rust_hmm"})
        crates.append({
            **sample,
            "display_name": name,
            "root_module": module,
            "deps": deps,
            "is_workspace_member": True,
            "cfg": sample["cfg"] + [f"hmm_series_{series.replace('.', '_')}"] + parts,
            "env": {
                **sample["env"],
                "RUST_HMM_BINDINGS": f"{build}/rust/bindings_generated.rs",
                "RUST_MODFILE": name,
            },
        })
        if is_library:
            library = len(crates) - 1
    json.dump(outside({**project, "crates": crates}), sys.stdout, indent=1)


main()
