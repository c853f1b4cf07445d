# SPDX-License-Identifier: GPL-2.0
"""Sphinx's settings for the book; tools/doc builds it."""

import os
import re

project = "rust_hmm"
author = "The rust_hmm authors"
project_copyright = author

# References to what does not exist are errors (tools/doc: -W).
nitpicky = True
highlight_language = "none"

html_theme = "alabaster"
html_theme_options = {
    "description": "Heterogeneous memory management for Linux drivers, in Rust",
    "page_width": "1200px",
    "sidebar_width": "260px",
}
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False

build = os.environ.get("HMM_BUILD", os.path.join(os.path.dirname(__file__), "..", "build"))


def include_generated(_app, _docname, source):
    """Replaces the comment ".. generated FILE" by build/FILE, if a command has written it."""
    def contents(match):
        try:
            with open(os.path.join(build, match[1]), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return match[0]

    source[0] = re.sub(r"^\.\. generated (\S+)$", contents, source[0], flags=re.MULTILINE)


def include_doc_comment(app, _docname, source):
    """Replaces ".. doc-comment FILE: HEADING" by that section of the comment at the head of a Rust file."""
    def contents(match):
        with open(os.path.join(app.srcdir, match[1]), encoding="utf-8") as file:
            lines = [line[4:].rstrip() for line in file if line.startswith("//!")]
        begin = lines.index(f"# {match[2]}") + 1
        end = next((i for i in range(begin, len(lines)) if lines[i].startswith("# ")), len(lines))
        text = "\n".join(lines[begin:end])
        # Code and links to items, from Markdown.
        return re.sub(r"\[`([^`]+)`\](\([^)]*\))?|`([^`]+)`", lambda item: f"``{item[1] or item[3]}``", text)

    source[0] = re.sub(r"^\.\. doc-comment (\S+): (.+)$", contents, source[0], flags=re.MULTILINE)


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", include_generated)
    app.connect("source-read", include_doc_comment)
