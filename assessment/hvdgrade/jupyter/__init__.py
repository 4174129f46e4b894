"""The buttons *Assess* and *Hand in* of JupyterLab.

server.py            the HTTP requests of the buttons
hand_in.py           sends a script to the service of the course
runner.py            starts one grading at a time in a separate process, and reports its progress
die_with_server.py   that process, which ends when the Jupyter server ends
labextension/        what runs in the browser: plain files, which JupyterLab loads as they are
"""


def _jupyter_server_extension_points() -> list[dict]:
    # Not imported at the top, because die_with_server.py runs without the packages of the server.
    from hvdgrade.jupyter.server import Assess

    return [{"module": "hvdgrade.jupyter", "app": Assess}]


def _jupyter_labextension_paths() -> list[dict]:
    return [{"src": "labextension", "dest": "hvdgrade-assess"}]
