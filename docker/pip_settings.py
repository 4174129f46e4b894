"""Print shell commands that keep only those of the user's pip settings that say where packages come from.

setup.sh and build_horovod.sh evaluate them. Other settings, such as `user = true`, a target folder, required
hashes or the constraints of an image, are for other environments, and pip could not install into this one.
"""

import ast
import os
import shlex
import subprocess
import sys

KEPT = (
    *("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "keyring-provider"),
    *(
        "proxy",
        "cert",
        "client-cert",
        "use-feature",
        "use-deprecated",
    ),  # two of them choose certificates
    *("cache-dir", "no-cache-dir", "timeout", "default-timeout", "retries", "resume-retries"),
)


def main() -> None:
    """Print the commands."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    # With `user = true`, pip would list only the file of the user.
    variables = {**os.environ, "PIP_USER": "0"}
    listed = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, timeout=120)
    if listed.returncode:
        sys.exit(listed.returncode)
    settings = {}
    for line in listed.stdout.splitlines():  # such as global.index-url='https://...'
        place, _, value = line.partition("=")
        section, _, name = place.rpartition(".")
        if name in KEPT and (text := ast.literal_eval(value)):
            settings[section, name] = text
    # pip prefers a section of a command to [global], and a variable to both.
    order = {"global": 0, ":env:": 2}
    merged = {}
    for (_, name), value in sorted(settings.items(), key=lambda item: order.get(item[0][0], 1)):
        merged[f"PIP_{name.upper().replace('-', '_')}"] = value
    unset = [name for name in os.environ if name.startswith("PIP_") and name not in merged]
    merged["PIP_CONFIG_FILE"] = os.devnull  # then pip reads no file
    print("unset -v", *unset)
    print("export", *(f"{name}={shlex.quote(value)}" for name, value in merged.items()))


if __name__ == "__main__":
    main()
