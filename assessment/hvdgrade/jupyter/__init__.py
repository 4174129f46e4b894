"""The Assess button of JupyterLab: the part that runs in the Jupyter server.

    server.py     what the button asks over HTTP
    runner.py     one grading at a time, as a process of its own
    lifeline.py   that process: it ends with the server, however the server ends

What the learner sees is in labextension/: plain files, which JupyterLab loads as they are.
"""


def _jupyter_server_extension_points():
    from hvdgrade.jupyter.server import Assess  # not at the top: lifeline.py needs no server

    return [{"module": "hvdgrade.jupyter", "app": Assess}]


def _jupyter_labextension_paths():
    return [{"src": "labextension", "dest": "hvdgrade-assess"}]
