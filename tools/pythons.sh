#!/bin/sh
# Which Python `make` takes. A Python works if it is a supported version and can make a virtual environment with pip;
# those of pyenv count too, whether or not its shims are set to them.
#
#     pythons.sh list           the executables that work, the newest version first, one for each
#     pythons.sh choose         the newest; where pip finds a CPU-only PyTorch for some of them only, the newest of those:
#                               the others would download gigabytes of CUDA (INDEX: the package index for PyTorch)
#     pythons.sh check PYTHON   nothing if this one works, else what is wrong with it
#     pythons.sh others PYTHON  those of `list` of other versions than PYTHON
set -eu

VERSIONS="3.14 3.13 3.12 3.11"  # as in pyproject.toml
ASK='
import sys, ensurepip, venv
if sys.implementation.name == "cpython" and "%d.%d" % sys.version_info[:2] == sys.argv[1]:
    print(sys.executable)
'

list() {
    for version in $VERSIONS; do
        prefix=$(pyenv prefix "$version" 2> /dev/null) || prefix=
        for command in "python$version" ${prefix:+"$prefix/bin/python$version"}; do
            path=$("$command" -c "$ASK" "$version" 2> /dev/null) || continue
            if [ -n "$path" ]; then
                echo "$path"
                break
            fi
        done
    done
}

check() {
    found=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null) || found=
    if [ -z "$found" ]; then
        echo "make: PYTHON=$1 does not run: name one of the Pythons $VERSIONS" >&2
        exit 2
    fi
    case " $VERSIONS " in
        *" $found "*) ;;
        *)
            echo "make: PYTHON=$1 is Python $found, and coderl needs one of $VERSIONS" >&2
            exit 2
            ;;
    esac
    if [ -z "$("$1" -c "$ASK" "$found" 2> /dev/null)" ]; then
        echo "make: PYTHON=$1 cannot make virtual environments: install its venv module (python$found-venv)" >&2
        exit 2
    fi
}

version_of() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'
}

# A Python with a pip that can be asked: this one, or a virtual environment of it in the folder $2.
with_pip() {
    new_enough='import pip, sys; sys.exit(tuple(map(int, pip.__version__.split(".")[:2])) < (23, 2))'
    if ! "$1" -c "$new_enough" 2> /dev/null; then
        "$1" -m venv "$2/venv" && set -- "$2/venv/bin/python" && "$1" -c "$new_enough" 2> /dev/null || return 1
    fi
    echo "$1"
}

# Whether pip ($1 -m pip) would install a CPU-only PyTorch for Python version $2. Nothing is installed or downloaded but
# the package's metadata, which takes pip 23.2.
has_cpu_torch() {
    "$1" -m pip install --quiet --disable-pip-version-check ${INDEX:+--index-url "$INDEX"} --dry-run --no-deps \
        --ignore-installed --only-binary=:all: --python-version "$2" --target "$3" --report "$3/report" \
        -c constraints.txt torch > /dev/null 2>&1 && grep -Eq '"version": "[^"]*\+cpu"' "$3/report"
}

choose() {
    found=$(list)
    newest=$(echo "$found" | head -n 1)
    if [ -z "$newest" ]; then
        echo "make: no Python that works: install one of $VERSIONS with its venv module, or say make PYTHON=..." >&2
        exit 2
    fi
    chosen=$newest
    if [ "$(echo "$found" | wc -l)" -gt 1 ]; then
        folder=$(mktemp -d)
        if pip=$(with_pip "$newest" "$folder"); then
            for path in $found; do  # side by side: each takes seconds
                version=$(version_of "$path")
                mkdir "$folder/$version"
                { has_cpu_torch "$pip" "$version" "$folder/$version" && touch "$folder/$version/cpu"; } &
            done
            wait
            for path in $found; do
                if [ -e "$folder/$(version_of "$path")/cpu" ]; then
                    chosen=$path
                    break
                fi
            done
        fi
        rm -rf "$folder"
    fi
    echo "$chosen"
}

others() {
    own=$(version_of "$1")
    for path in $(list); do
        [ "$(version_of "$path")" = "$own" ] || echo "$path"
    done
}

"$@"
