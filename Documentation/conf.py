# SPDX-License-Identifier: GPL-2.0
"""Sphinx's settings for the book; tools/doc builds it."""

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
