"""The documentation site: `make docs` builds it from the pages in this folder.

Pages are plain Markdown that any host shows as it is. What only a site needs is here: the order of
the pages, and three small extensions (files outside `docs/`, formulas, and a check that nothing is
missing or comes from the network).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

NAVIGATION = {
    "First steps": ["tutorial", "report", "watching", "concepts", "faq", "smollm2"],
    "Your own task": ["own-task", "doctor", "metrics", "engines", "performance", "cli"],
    "Research": [
        "own-idea",
        "comparing",
        "catalog",
        "stages",
        "estimators",
        "paper-vs-code",
        "traps",
    ],
    "Other trainers": ["from-trl", "from-verl", "other-trainers", "peers"],
    "Project": ["log"],
}
"""Every page but the front page, in the order of the sidebar, under what its reader comes for."""

project = "polyopt"
html_title = "polyopt"
author = "the polyopt authors"
html_show_copyright = False

extensions = [
    "myst_parser",
    "extensions.navigation",
    "extensions.linked_files",
    "extensions.mathml",
]
root_doc = "index"
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
html_math_renderer = "mathml"

html_theme = "furo"
html_static_path = ["extensions/site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_permalinks_icon = "#"
html_theme_options = {"footer_icons": []}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
