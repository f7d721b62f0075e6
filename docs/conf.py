"""Sphinx's settings. `tools/make_site.py` calls Sphinx, on a copy of this folder with the notebooks beside it."""

import zerolab

project = "zerolab"
author = "zerolab contributors"
copyright = "zerolab contributors, MIT licence"
version = release = zerolab.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["CONTRIBUTING.md", "extra"]
html_extra_path = ["extra"]  # the players and stills: copied as they are
html_static_path = ["_static"]

nb_execution_mode = "off"  # they were executed before, with players that live without a kernel
nb_merge_streams = True
nb_ipywidgets_js = {}  # or each page would fetch the widgets' scripts from elsewhere, and no page has a widget
myst_heading_anchors = 3  # `glossary.md#rank` works as it does in Lab and on GitHub
# No page has a formula in TeX: bytes are counted in words and code, such as `8Ψ/N`. So no MathJax is brought along, and
# a dollar is a dollar.
myst_enable_extensions = ["colon_fence"]
suppress_warnings = [
    "myst.header",  # an exercise's heading stands one level down wherever the lesson puts it
    "misc.highlighting_failure",  # the shell's lines in a cell are coloured as well as can be
]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures with torch's types are longer than what they say
default_role = "code"  # docstrings are written as Markdown has it: `name`
viewcode_line_numbers = True

html_theme = "furo"
pygments_dark_style = "a11y-high-contrast-dark"  # the pair of the light style that furo chooses
html_title = "zerolab"
html_copy_source = False
html_show_sphinx = False
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
# The player's own paper, ink and hair (player/base.css), so that it lies in the page and not on it.
SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
LIGHT = {
    "font-stack": SANS,
    "color-foreground-primary": "#1d2430",
    "color-foreground-secondary": "#5d6675",
    "color-foreground-muted": "#5d6675",
    "color-background-primary": "#ffffff",
    "color-background-secondary": "#f6f6f4",
    "color-background-border": "#e3e4e1",
    "color-brand-primary": "#00598c",
    "color-brand-content": "#00598c",
    "color-brand-visited": "#00598c",
}
DARK = {
    "color-foreground-primary": "#e9ebee",
    "color-foreground-secondary": "#a3abb8",
    "color-foreground-muted": "#a3abb8",
    "color-background-primary": "#14171c",
    "color-background-secondary": "#1c2027",
    "color-background-border": "#2b3038",
    "color-brand-primary": "#7cc4f0",
    "color-brand-content": "#7cc4f0",
    "color-brand-visited": "#7cc4f0",
}
html_theme_options = {
    "light_css_variables": LIGHT,
    "dark_css_variables": DARK,
    "navigation_with_keys": False,  # the arrow keys belong to the players
}
