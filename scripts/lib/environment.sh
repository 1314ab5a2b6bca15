# Sourced by run_demo.sh and the scripts beside this folder: gives $PYTHON, an interpreter with everything the caller needs.
# Callers set: ROOT (the project's root), EXTRA (the optional dependencies to have: demo or dev), PROBE (modules that prove it).

say() { printf '%s\n' "$*" >&2; }

die() { say "$@"; exit 1; }

# An interpreter that already has all of $PROBE: the active environment first (conda, venv), then the project's own .venv.
find_ready_python() {
  local candidate
  for candidate in "${VRAG_PYTHON:-}" "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "${CONDA_PREFIX:+$CONDA_PREFIX/bin/python}" "$ROOT/.venv/bin/python"; do
    [ -n "$candidate" ] && [ -x "$candidate" ] || continue
    # An environment of this project that was made from an older list of requirements has to be brought up to date first.
    if [ "$candidate" = "$ROOT/.venv/bin/python" ] && [ "$(cat "$ROOT/.venv/.vrag-$EXTRA" 2>/dev/null)" != "$(requirements_sum)" ]; then
      continue
    fi
    if (cd "$ROOT" && "$candidate" -c "import importlib.util as u, sys; sys.exit(any(u.find_spec(m) is None for m in '$PROBE'.split()))") 2>/dev/null; then
      PYTHON="$candidate"
      return 0
    fi
  done
  return 1
}

requirements_sum() { cksum < "$ROOT/pyproject.toml" | tr -d ' \n'; }

# Creates .venv where there is none and installs the project into it; only the first run takes time.
make_environment() {
  local python3="${VRAG_PYTHON:-}" candidate
  if [ -z "$python3" ]; then
    for candidate in python3.12 python3.11 python3.10 python3.13 python3; do
      if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        python3="$candidate"
        break
      fi
    done
  fi
  [ -n "$python3" ] || die "Python 3.10 or newer is needed and was not found. Install it, or set VRAG_PYTHON to one."
  if [ ! -x "$ROOT/.venv/bin/python" ]; then
    say "Creating the virtual environment .venv ..."
    "$python3" -m venv "$ROOT/.venv" || die "Could not create .venv with $python3. On Debian and Ubuntu: apt install python3-venv"
  fi
  local free_kb
  free_kb=$(df -Pk "$ROOT" | awk 'NR==2 {print $4}')
  if [ "${free_kb:-0}" -lt 2000000 ]; then
    die "Only $((free_kb / 1024)) MB are free under $ROOT; about 2 GB are needed for the first installation."
  fi
  say "Installing the requirements into .venv (once; about a minute) ..."
  "$ROOT/.venv/bin/python" -m pip install -qq --disable-pip-version-check --upgrade "pip>=24" \
    && (cd "$ROOT" && .venv/bin/python -m pip install -qq --disable-pip-version-check -e ".[$EXTRA]") \
    || die "The installation failed; the lines above say why. With no network, install the packages of requirements.txt by hand and set VRAG_PYTHON."
  requirements_sum > "$ROOT/.venv/.vrag-$EXTRA"
  PYTHON="$ROOT/.venv/bin/python"
}

ready_python() { find_ready_python || make_environment; }
