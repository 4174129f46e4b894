"""The panel *Course* of JupyterLab, and links that open the learner's script next to the notebook.

server.py       the HTTP request of the panel
labextension/   what runs in the browser: plain files, which JupyterLab loads as they are
"""


def _jupyter_server_extension_points() -> list[dict]:
    from hvdlab.jupyter.server import (
        Course,
    )  # the package can be imported without the server's packages

    return [{"module": "hvdlab.jupyter", "app": Course}]


def _jupyter_labextension_paths() -> list[dict]:
    return [{"src": "labextension", "dest": "hvdlab-course"}]
