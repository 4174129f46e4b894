"""Show the calculators and the players inside the frame of the site, with its menu and a way back.

A calculator is a page of its own in labs/calculators, and a player is one that the slides write. A page of
the site shows each of them in an iframe. So their styles and scripts cannot meet those of the theme.
"""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CALCULATORS = ROOT / "labs/calculators"
TITLE = re.compile(r"<title>(.*?)</title>")
QUESTION = re.compile(r"^\| \[.*?\]\((\w+)\.html\) \| (.+?) \|", re.M)
PLAYERS = {  # page of the slides -> title, what it shows, lab
    "ring": (
        "Ring all-reduce",
        "How do four ranks add up their arrays, if each one talks only to its neighbours?",
        "04_data_parallelism",
    ),
    "noise_ball": (
        "The path of SGD around a minimum",
        "Why does SGD not stop at the minimum, and what changes with the batch size?",
        "03_stochastic_gradient_descent",
    ),
    "negotiation": (
        "Horovod's negotiation of tensors",
        "In which order do the gradients of two ranks become ready, and what does Horovod send when?",
        "05_horovod",
    ),
    "growing_batch": (
        "A growing batch instead of a falling learning rate",
        "Does a larger batch late in the training do what a smaller learning rate does?",
        "07_large_batch_remedies",
    ),
}
# A page of the site tells the page in its frame whether it is dark, and whether it has title and menu itself.
# In the other direction a calculator tells its inputs, which are in its address.
IN_A_FRAME = """<base target="_parent">
<style>
.whole nav, .whole h1 { display: none; }
:root { color-scheme: light; } :root.dark { color-scheme: dark; }
</style>
<script>
{
  const classes = document.documentElement.classList;
  classes.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches);
  if (parent !== window) {
    addEventListener("message", ({ source, data }) => {
      if (source !== parent || typeof data.dark !== "boolean") return;
      classes.toggle("dark", data.dark);
      classes.toggle("whole", data.whole);
    });
    const tell = () => setTimeout(() => parent.postMessage({ fragment: location.hash }, "*"));
    for (const event of ["input", "reset", "click"]) addEventListener(event, tell);
    parent.postMessage({ ready: true }, "*");
  }
}
</script>
</head>"""
DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{\s*:root (\{.*?\})\s*\}", re.S)


def write(folder: Path) -> None:
    """Write a page for each calculator and each player, and the page that lists them.

    Args:
        folder: to write to, one folder below the top of the site.
    """
    folder.mkdir()
    asked = dict(QUESTION.findall((CALCULATORS / "README.md").read_text("utf-8")))
    lists = {"Calculators": [], "Players": []}
    for name, question in asked.items():
        title = TITLE.search((CALCULATORS / f"{name}.html").read_text("utf-8"))[1]
        _write_page(folder / f"{name}.md", title, question, f"../calculators/{name}.html")
        lists["Calculators"].append((name, title, question))
    for name, (title, question, lab) in PLAYERS.items():
        text = f"{question} [](../notebooks/{lab}.ipynb) explains it."
        _write_page(folder / f"{name}.md", title, text, f"../slides/_static/{name}.html")
        lists["Players"].append((name, title, question))
    lines = ["# Try it in the browser", "", "Nothing is installed, and nothing is sent anywhere."]
    for heading, pages in lists.items():
        lines += ["", f"## {heading}", "", "::::{grid} 1 2 2 2", ":gutter: 3", ""]
        for name, title, question in pages:
            lines += [f":::{{grid-item-card}} {title}", f":link: {name}", ":link-type: doc"]
            lines += [f":link-alt: {title}", "", question, ":::"]
        lines += ["::::"]
    names = [name for pages in lists.values() for name, _, _ in pages]
    lines += ["", "```{toctree}", ":hidden:", "", *names, "```", ""]
    (folder / "index.md").write_text("\n".join(lines), encoding="utf-8")


def _write_page(path, title, text, address):
    """Write a page with a frame that fills the rest of the window."""
    frame = f'<iframe class="whole-page" src="{address}" title="{title}"></iframe>'
    lines = ["---", "html_theme.sidebar_secondary.remove: true", "---", f"# {title}", ""]
    lines += [f"{text} [All calculators and players](index.md)", "", frame, ""]
    path.write_text("\n".join(lines), encoding="utf-8")


def finish(site: Path) -> None:
    """Copy the calculators to the built site, and connect them and the players with the pages around them."""
    shutil.copytree(CALCULATORS, site / "calculators", ignore=shutil.ignore_patterns("*.md"))
    players = [site / f"slides/_static/{name}.html" for name in PLAYERS]
    for path in [*(site / "calculators").glob("*.html"), *players]:
        text = path.read_text("utf-8").replace("</head>", IN_A_FRAME, 1)
        path.write_text(DARK.sub(r":root.dark \1", text), encoding="utf-8")
    styles = site / "calculators/calculators.css"
    styles.write_text(DARK.sub(r":root.dark \1", styles.read_text("utf-8")), encoding="utf-8")
