# What setup.sh and build_horovod.sh share. They define `stop` and `interruptible`, and source this file.

# use_pip_settings PYTHON: of the user's pip settings keep those that say where packages come from (pip_settings.py).
use_pip_settings() {
    local settings
    settings=$("$1" "$(dirname "${BASH_SOURCE[0]}")/pip_settings.py") || stop "pip cannot read its settings; its message is above."
    eval "$settings"
}

# one_at_a_time FILE WHO: lock FILE until this script and its children have ended, also by kill -9. If another process has the lock,
# say so with WHO and wait for it. Without locks in the file system of FILE, lock a file of this machine instead.
one_at_a_time() {
    exec {lock}>> "$1"
    if flock -n $lock; then return; elif [ $? != 1 ]; then
        echo "The file system of $(realpath "$(dirname "$1")") has no locks: do not do this on two machines at the same time"
        exec {lock}>> "${TMPDIR:-/tmp}/hvdlab-$(id -u)-$(realpath "$1" | sha256sum | cut -c1-16).lock"
        if flock -n $lock; then return; elif [ $? != 1 ]; then
            stop "${TMPDIR:-/tmp} has no locks (flock) either: name another folder for temporary files: export TMPDIR=/path/to/folder"
        fi
    fi
    echo "$2: waiting for it"
    interruptible flock -w 3600 $lock || stop "it did not end within an hour: look for it with 'ps', end it and try again."
}
